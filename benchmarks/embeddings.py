"""Vectors a second of an encoder of MiniLM's shape: texts one after another, and in one
batch.

    python benchmarks/embeddings.py [--texts 64] [--tokens 32]

Ratios are what counts: both are measured in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dragoman.core.encoder_requests import EmbedRequest
from dragoman.engines.batched_encoder import BatchedEmbedder
from dragoman.engines.encoder_engine import load

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.engines.encoder.directories import WORDS, Shape, write_encoder

MINILM = Shape(layers=6, hidden=384, heads=12, intermediate=1536, positions=512)


async def measure(texts: int, tokens: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = load(write_encoder(Path(folder), MINILM, pooling=None))
    assert isinstance(engine, BatchedEmbedder)
    ids = np.random.default_rng(0).integers(5, len(WORDS), (texts, tokens)).tolist()
    inputs: tuple[tuple[int, ...], ...] = tuple(tuple(row) for row in ids)
    await engine.start()
    await engine.embed(EmbedRequest("m", inputs[:2]))
    begin = time.perf_counter()
    alone = [await engine.embed(EmbedRequest("m", (each,))) for each in inputs]
    one_by_one = time.perf_counter() - begin
    begin = time.perf_counter()
    together = await engine.embed(EmbedRequest("m", inputs))
    batch = time.perf_counter() - begin
    await engine.stop()
    assert together.vectors == tuple(each.vectors[0] for each in alone), "equal to the bit"
    print(
        f"{texts / one_by_one:.0f} texts/s one by one, {texts / batch:.0f} in a batch: "
        f"{one_by_one / batch:.1f} times"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.texts, arguments.tokens))


if __name__ == "__main__":
    main()
