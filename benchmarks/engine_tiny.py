"""Tokens per CPU-second of the embedded engine, and where the time goes.

    OPENBLAS_NUM_THREADS=1 python benchmarks/engine_tiny.py [--tokens 200] [--rounds 3]
    [--profile]

Everything runs in this process, thread and event loop as in the server, and CPU is what
the whole process took. Decoding: 1, 8 and 32 sequences with prompts of 30 tokens,
greedy, sampled, and with alternatives. Prefill: one prompt of each length, nothing
cached. The best of the rounds is shown.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import random
import time

from dragoman.core.request import Sampling
from dragoman.core.token_engine import Ended, Failed, TokenOutput, TokenRequest
from dragoman.engines.batching import SchedulerConfig, build_rng
from dragoman.engines.batching.sequence import Sequence
from dragoman.engines.batching.stepper import Stepper
from dragoman.engines.tiny import TinyEngine, find_bundled_model, load
from dragoman.engines.tiny.llama import read_model
from dragoman.engines.tiny.paged_llama import PagedLlama

GREEDY = Sampling(temperature=0)
KINDS: dict[str, tuple[Sampling, int | None]] = {
    "greedy": (GREEDY, None),
    "sampled": (Sampling(seed=1), None),
    "top_k top_p": (Sampling(seed=1, top_k=50, top_p=0.95), None),
    "penalties": (Sampling(temperature=0, repetition_penalty=1.1, presence_penalty=0.1), None),
    "logprobs 5": (GREEDY, 5),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--profile", action="store_true", help="show the functions of 32 greedy sequences"
    )
    args = parser.parse_args()
    if args.profile:
        profile(args.tokens)
    else:
        asyncio.run(measure(args.tokens, args.rounds))


async def measure(tokens: int, rounds: int) -> None:
    begun = time.perf_counter()
    engine = load(find_bundled_model())
    print(f"load {(time.perf_counter() - begun) * 1e3:.0f} ms")
    await engine.start()
    await decode(engine, 8, 20, "greedy")
    print(
        f"\n{'decode, tokens per CPU-second':32}" + "".join(f"{count:>8}" for count in (1, 8, 32))
    )
    for kind in KINDS:
        best = [
            max([await decode(engine, count, tokens, kind) for _ in range(rounds)])
            for count in (1, 8, 32)
        ]
        print(f"{kind:32}" + "".join(f"{rate:8.0f}" for rate in best))
    print("\nprefill, CPU milliseconds")
    for length in (30, 120, 500, 2000, 8000):
        print(
            f"{length:>8}{min([await prefill(engine, length) for _ in range(rounds)]) * 1e3:10.1f}"
        )
    await engine.stop()


async def decode(engine: TinyEngine, count: int, tokens: int, kind: str) -> float:
    """Tokens per CPU-second."""
    sampling, logprobs = KINDS[kind]
    requests = [
        TokenRequest(
            id=str(key), prompt=prompt(30), max_tokens=tokens, sampling=sampling, logprobs=logprobs
        )
        for key in range(count)
    ]
    begun = time.process_time()
    await asyncio.gather(*(finish(engine, request) for request in requests))
    return count * tokens / (time.process_time() - begun)


async def prefill(engine: TinyEngine, length: int) -> float:
    """CPU-seconds until the first token."""
    begun = time.process_time()
    await finish(
        engine, TokenRequest(id="prefill", prompt=prompt(length), max_tokens=1, sampling=GREEDY)
    )
    return time.process_time() - begun


def prompt(length: int) -> tuple[int, ...]:
    return tuple(random.randrange(3, 2000) for _ in range(length))


async def finish(engine: TinyEngine, request: TokenRequest) -> None:
    done = asyncio.get_running_loop().create_future()

    def deliver(output: TokenOutput) -> None:
        if isinstance(output, (Ended, Failed)):
            done.set_result(None)

    engine.add(request, deliver)
    await done


def profile(tokens: int) -> None:
    """The steps alone, without thread and event loop."""
    model = read_model(find_bundled_model())
    stepper = Stepper(PagedLlama(model), SchedulerConfig(), 16384)
    vocab = model.config.vocab
    most = model.config.max_positions
    for key in range(32):
        request = TokenRequest(id=str(key), prompt=prompt(30), max_tokens=tokens, sampling=GREEDY)
        stepper.scheduler.add(
            Sequence(key, request, vocab=vocab, max_model_len=most, rng_factory=build_rng)
        )
    with cProfile.Profile() as profiler:
        while stepper.scheduler.has_work:
            stepper.step()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
