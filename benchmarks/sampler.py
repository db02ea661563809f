"""Sampling of a step of 64 sequences over a large vocabulary: `python benchmarks/sampler.py`.

Times depend on the machine, so each is also given as a share of the time that sorting all logits takes, which top_p
needs by definition and the sampler avoids.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np

from dragoman.core.engine import TokenRequest
from dragoman.core.request import Sampling
from dragoman.engines.batching.sampler import sample
from dragoman.engines.batching.sampling import SamplingState

SEQUENCES, VOCAB = 64, 131_072
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "temperature": Sampling(temperature=0.8, seed=1),
    "top_p 0.9": Sampling(temperature=0.8, top_p=0.9, seed=1),
    "top_k 50, top_p 0.9": Sampling(temperature=0.8, top_k=50, top_p=0.9, seed=1),
}


def seeded(seed: int | None) -> Callable[[], float]:
    return random.Random(seed).random


def measure(work: Callable[[], object]) -> float:
    """The shortest of three runs, in seconds."""
    times: list[float] = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    for spread in (1, 3, 6):
        logits = (np.random.default_rng(0).normal(size=(SEQUENCES, VOCAB)) * spread).astype(np.float32)
        sorting = measure(lambda logits=logits: np.sort(logits, axis=1))
        print(f"logits with standard deviation {spread}: sorting {sorting * 1e3:.0f} ms")
        for name, sampling in SAMPLINGS.items():
            request = TokenRequest(id="a", prompt=(1,), max_tokens=1, sampling=sampling)
            states = [SamplingState(request, VOCAB, seeded) for _ in range(SEQUENCES)]
            took = measure(lambda logits=logits, states=states: sample(logits, states, [None] * SEQUENCES))
            print(f"  {name:20} {took * 1e3:7.1f} ms, {took / sorting:5.2f} of sorting")


if __name__ == "__main__":
    main()
