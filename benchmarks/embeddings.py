"""Texts per CPU second of an encoder of MiniLM's shape, in numpy and on transformers:
one after another, and 64 at a time.

    python benchmarks/embeddings.py [--rounds 3] [--tokens 12 48 200]

Ratios are what counts: all are measured in the same run. The baseline is
sentence-transformers on the same directory, where it is installed; else the numpy
encoder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np

from dragoman.core.encoder_requests import TextInputs
from dragoman.engines import encoder_engine
from dragoman.engines.batched_encoder import BatchedEmbedder
from dragoman.launch.engines.encoder.library import is_library_installed
from dragoman.pipeline.embedding import embed
from dragoman.pipeline.engine_backends import EmbedderBackend
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import load_tokenizer

# `tests` lies in the checkout and in each package.
sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("packages/*")))

from tests.engines.encoder.directories import WORDS, Shape, write_encoder

MINILM = Shape(layers=6, hidden=384, heads=12, intermediate=1536, positions=512)
N_TEXTS = 64
Encode: TypeAlias = Callable[[Sequence[str]], Awaitable[object]]


async def measure_cpu(
    runs: Mapping[str, Encode], texts: Sequence[str], rounds: int
) -> dict[str, float]:
    """Return the texts per CPU second of each run: the median of rounds, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    # The first round loads code and memory.
    for _ in range(rounds + 1):
        for name, encode in runs.items():
            begin = time.process_time()
            await encode(texts)
            seconds[name].append(time.process_time() - begin)
    return {name: len(texts) / median(each[1:]) for name, each in seconds.items()}


async def measure(directory: Path, lengths: Sequence[int], rounds: int) -> None:
    tokenizer = load_tokenizer(directory, generates=False)
    engines = {"numpy": encoder_engine.load(directory)}
    runs: dict[str, Encode] = {}
    if is_library_installed():
        from dragoman.engines.transformers import encoder, load_network

        options = load_network.TransformersOptions()
        engines["transformers"] = encoder.load(directory, options)
    if find_spec("sentence_transformers") is not None:
        library: Any = import_module("sentence_transformers")
        theirs = library.SentenceTransformer(str(directory), device="cpu", local_files_only=True)

        async def encode(texts: Sequence[str]) -> object:
            return theirs.encode(list(texts), batch_size=N_TEXTS)

        runs["sentence-transformers"] = encode
    for name, engine in engines.items():
        assert isinstance(engine, BatchedEmbedder)
        await engine.start()
        model = ServedModel(name, EmbedderBackend(engine, tokenizer), 512, created=0)

        async def encode_served(texts: Sequence[str], model: ServedModel = model) -> object:
            return await embed(model, TextInputs(tuple(texts)), None, None)

        runs[name] = encode_served
    baseline = next(iter(runs))
    for length in lengths:
        numbers = np.random.default_rng(0).integers(5, len(WORDS), (N_TEXTS, length))
        ids: list[list[int]] = numbers.tolist()
        texts = [" ".join(WORDS[i] for i in row) for row in ids]
        together = await measure_cpu(runs, texts, rounds)
        alone = await measure_cpu(runs, texts[:1], 8 * rounds)
        for name in runs:
            print(
                f"{length:4} words  {name:22} {together[name]:6.0f} texts per CPU second, "
                f"{together[name] / together[baseline]:.2f} of {baseline}'s; "
                f"{alone[name] / alone[baseline]:.2f} one by one"
            )
    for engine in engines.values():
        await engine.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="+", default=[6, 24, 96], metavar="N")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = write_encoder(Path(folder), MINILM)
        # sentence-transformers needs to be told.
        pooling = {"embedding_dimension": MINILM.hidden, "pooling_mode": "mean"}
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        limit = {"max_seq_length": MINILM.positions}
        (directory / "sentence_bert_config.json").write_text(json.dumps(limit))
        asyncio.run(measure(directory, arguments.tokens, arguments.rounds))


if __name__ == "__main__":
    main()
