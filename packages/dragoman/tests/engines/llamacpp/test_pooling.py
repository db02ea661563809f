"""Vectors and scores of an encoder in a GGUF file, compared with the same encoder in
numpy.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.engines.encoder.directories import PLAIN, SCORER, SEP, WORDS, build_pair
from tests.engines.encoder.directories import write_encoder as write_directory

from dragoman.core.encoder import Encoder
from dragoman.core.encoder_requests import EmbedRequest, ScoreRequest, TextInputs
from dragoman.core.errors import EngineError, RequestError
from dragoman.engines import encoder_engine
from dragoman.engines.batched_encoder import BatchedEmbedder, BatchedScorer
from dragoman.engines.llamacpp import LlamaCppEmbedder, LlamaCppScorer
from dragoman.engines.llamacpp.pooling import check_numbers
from dragoman.engines.llamacpp.wire import EmbeddingItem
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EmbedderBackend, ScorerBackend
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

pytest.importorskip("xllamacpp", reason="needs xllamacpp")
pytest.importorskip("gguf", reason="needs gguf")

from tests.engines.llamacpp.files import write_encoder

pytestmark = pytest.mark.llamacpp

RANDOM = np.random.default_rng(1)
TEXTS = tuple(tuple(RANDOM.integers(5, len(WORDS), n).tolist()) for n in (3, 1, 20, 3, 7, 24, 2))
PAIRS = tuple(
    build_pair((2, *first, SEP, *second, SEP), len(first) + 2)
    for first in TEXTS[:3]
    for second in TEXTS[:2]
)


def build_model(file: Path) -> ServedModel:
    (model,) = build_models(Settings(model=str(file), dtype="float32", threads=1), SystemClock())
    return model


def vectors(packed: tuple[bytes, ...]) -> np.ndarray:
    return np.array([np.frombuffer(vector, "<f4") for vector in packed])


@pytest.mark.parametrize(
    ("pooling", "mode"), [(1, "pooling_mode_mean_tokens"), (2, "pooling_mode_cls_token")]
)
async def test_embed_vectors_match_numpy(tmp_path: Path, pooling: int, mode: str) -> None:
    ours = encoder_engine.load(write_directory(tmp_path, pooling=mode))
    model = build_model(write_encoder(tmp_path / "bert.gguf", pooling=pooling))
    assert isinstance(model.backend, EmbedderBackend)
    theirs = model.backend.engine
    assert isinstance(ours, BatchedEmbedder)
    assert isinstance(theirs, LlamaCppEmbedder)
    request = EmbedRequest("m", TEXTS)
    for engine in (ours, theirs):
        await engine.start()
    expected, found = await ours.embed(request), await theirs.embed(request)
    crowd = await asyncio.gather(*(theirs.embed(EmbedRequest("m", TEXTS[::-1])) for _ in range(4)))
    for engine in (ours, theirs):
        await engine.stop()
    assert np.allclose(vectors(found.vectors), vectors(expected.vectors), atol=2e-3)
    assert (found.dimensions, found.prompt_tokens) == (expected.dimensions, expected.prompt_tokens)
    assert {one.vectors for one in crowd} == {found.vectors[::-1]}
    assert (theirs.embedding_info.pooling, theirs.embedding_info.max_tokens) == (
        ours.embedding_info.pooling,
        PLAIN.positions,
    )


async def test_single_segment_scores_match_numpy(tmp_path: Path) -> None:
    """llama.cpp does not support a second segment."""
    ours = encoder_engine.load(write_directory(tmp_path, SCORER))
    model = build_model(write_encoder(tmp_path / "rank.gguf", SCORER, pooling=4))
    assert isinstance(model.backend, ScorerBackend)
    theirs = model.backend.engine
    assert isinstance(ours, BatchedScorer)
    assert isinstance(theirs, LlamaCppScorer)
    one_segment = tuple(build_pair(pair.ids, len(pair.ids)) for pair in PAIRS)
    for engine in (ours, theirs):
        await engine.start()
    for activation in (None, False):
        expected = await ours.score(ScoreRequest("m", one_segment, activation))
        found = await theirs.score(ScoreRequest("m", PAIRS, activation))
        assert found.scores == pytest.approx(expected.scores, abs=5e-3)
    for engine in (ours, theirs):
        await engine.stop()


async def test_tokenizer_uses_vocabulary_of_gguf_file(tmp_path: Path) -> None:
    model = build_model(write_encoder(tmp_path / "bert.gguf", pooling=1))
    assert model.tokenizer is not None
    text = "The cats sat on a Tokyo mat"
    assert model.tokenizer.encode(text, special=False, add_special_tokens=True) == [
        2,
        *(WORDS.index(word) for word in ("the", "cat", "##s", "sat", "on", "a", "tokyo", "mat")),
        3,
    ]
    assert TextInputs((text,)).add_special_tokens


async def test_embed_rejects_unknown_id_and_stopped_engine(tmp_path: Path) -> None:
    model = build_model(write_encoder(tmp_path / "bert.gguf", pooling=1))
    assert isinstance(model.backend, EmbedderBackend)
    engine = model.backend.engine
    await engine.start()
    with pytest.raises(RequestError, match="vocabulary"):
        await engine.embed(EmbedRequest("m", ((5, 999),)))
    assert ready(engine)
    await engine.stop()
    assert not ready(engine)
    with pytest.raises(EngineError, match="not running"):
        await engine.embed(EmbedRequest("m", TEXTS))


def test_check_numbers_rejects_nan_vectors() -> None:
    item = msgspec.json.decode(b'{"index": 0, "embedding": [[0.5, null]]}', type=EmbeddingItem)
    assert item.embedding == ((0.5, None),)
    check_numbers([np.array([0.5], np.float32)])
    with pytest.raises(EngineError, match="invalid numbers"):
        check_numbers([np.array([0.5, np.nan], np.float32)])


def ready(engine: Encoder) -> bool:
    return engine.health().ready
