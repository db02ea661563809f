"""Tokens a second of the embedded model in every engine that is installed, at 1, 8 and 32 sequences.

    OPENBLAS_NUM_THREADS=1 python benchmarks/engines.py [--tokens 200] [--rounds 3] [--engines tiny llamacpp]

Each engine computes on one thread and answers the same prompts of 30 tokens, greedily. Wall time, since llama.cpp has a
process of its own; the best of the rounds is shown, and its ratio to `tiny` in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dragoman.core.engine import Ended, Failed, TokenEngine, TokenOutput, TokenRequest
from dragoman.core.request import Sampling
from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.pipeline.models import TokenBackend
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings, SettingsError

COUNTS = (1, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=list(MODELS), choices=list(MODELS))
    args = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in args.engines:
            try:
                rates[name] = asyncio.run(measure(MODELS[name](Path(folder)), args.tokens, args.rounds))
            except (ImportError, SettingsError) as error:
                print(f"{name} is left out: {error}")
    base = rates.get("tiny")
    print(f"{'tokens a second':16}" + "".join(f"{count:>16}" for count in COUNTS))
    for name, row in rates.items():
        ratios = [""] * len(row) if base is None else [f" ({r / b:.2f})" for r, b in zip(row, base, strict=True)]
        print(f"{name:16}" + "".join(f"{f'{rate:.0f}{ratio}':>16}" for rate, ratio in zip(row, ratios, strict=True)))


def in_gguf(folder: Path) -> str:
    from tests.engines.llamacpp.files import write_embedded

    return str(write_embedded(folder / "tiny.gguf"))


MODELS: dict[str, Callable[[Path], str]] = {
    "tiny": lambda _: "tiny",
    "llamacpp": in_gguf,
    "transformers": lambda _: f"transformers:{tiny.find_bundled_model()}",
    "mlx": lambda _: f"mlx:{tiny.find_bundled_model()}",
}


async def measure(model: str, tokens: int, rounds: int) -> list[float]:
    """Best tokens a second for each of COUNTS."""
    settings = Settings(model=model, max_model_len=1024, max_num_seqs=32, threads=1, dtype="float32", device="cpu")
    (served,) = build_models(settings, SystemClock())
    assert isinstance(served.backend, TokenBackend)
    engine = served.backend.engine
    await engine.start()
    await decode(engine, 8, 20)
    best = [max([await decode(engine, count, tokens) for _ in range(rounds)]) for count in COUNTS]
    await engine.stop()
    return best


async def decode(engine: TokenEngine, count: int, tokens: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(finish(engine, str(key), tokens) for key in range(count)))
    return count * tokens / (time.perf_counter() - begun)


async def finish(engine: TokenEngine, id: str, tokens: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(output: TokenOutput) -> None:
        if isinstance(output, (Ended, Failed)):
            done.set_result(None)

    prompt = tuple(random.randrange(9, 2000) for _ in range(30))
    engine.add(TokenRequest(id=id, prompt=prompt, max_tokens=tokens, sampling=Sampling(temperature=0)), deliver)
    await done


if __name__ == "__main__":
    main()
