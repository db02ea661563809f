"""Sampling of a step of 64 sequences over a large vocabulary: `python
benchmarks/sampler.py`.

Times depend on the machine, so each is also given as a share of the time that sorting
all logits takes, which top_p needs by definition and the sampler avoids. With torch,
each line also has the time of torch's sampler on the accelerator, or on the CPU without
one, as a share of numpy's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.request import Sampling
from dragoman.core.token_engine import TokenRequest
from dragoman.engines.batching.sampler import SamplingState, sample

SEQUENCES = 64
VOCAB = 131_072
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


def build_torch_sampler(
    logits: NDArray[np.float32],
) -> Callable[[Sequence[SamplingState]], object] | None:
    """Build a function that samples these logits with torch on the device that is
    there; None without torch.
    """
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    torch: Any = import_module("torch")
    rows = import_module("dragoman.engines.transformers.device_sampler").DeviceSampledRows
    device = (
        "cuda"
        if torch.cuda.is_available()
        else "mps"
        if torch.backends.mps.is_available()
        else "cpu"
    )
    on_device = torch.from_numpy(logits).to(device)
    return lambda states: rows(on_device, states, [None] * len(states))


def main() -> None:
    for spread in (1, 3, 6):
        logits = (np.random.default_rng(0).normal(size=(SEQUENCES, VOCAB)) * spread).astype(
            np.float32
        )
        sorting = measure(lambda logits=logits: np.sort(logits, axis=1))
        sample_with_torch = build_torch_sampler(logits)
        print(f"logits with standard deviation {spread}: sorting {sorting * 1e3:.0f} ms")
        for name, sampling in SAMPLINGS.items():
            request = TokenRequest(id="a", prompt=(1,), max_tokens=1, sampling=sampling)
            states = [SamplingState(request, VOCAB, seeded) for _ in range(SEQUENCES)]
            took = measure(
                lambda logits=logits, states=states: sample(logits, states, [None] * SEQUENCES)
            )
            line = f"  {name:20} {took * 1e3:7.1f} ms, {took / sorting:5.2f} of sorting"
            if sample_with_torch:
                by_torch = measure(lambda states=states, run=sample_with_torch: run(states))
                line += f"; torch {by_torch / took:6.2f} of numpy"
            print(line)


if __name__ == "__main__":
    main()
