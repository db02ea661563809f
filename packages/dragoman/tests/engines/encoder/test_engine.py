"""Vectors and scores of the encoder engine: a text's result does not depend on the
batch, to the last bit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.core.encoder_requests import EmbedRequest, Pooling, ScoreRequest, TokenizedPair
from dragoman.core.errors import EngineError, RequestError, Unsupported
from dragoman.engines.batched_encoder import BatchedEmbedder, BatchedScorer, EncoderInput
from dragoman.engines.encoder_engine import load
from dragoman.engines.pooled_outputs import pool_states

from .directories import PLAIN, SCORER, WORDS, Shape, build_pair, write_encoder

RANDOM = np.random.default_rng(1)
TEXTS = tuple(
    tuple(RANDOM.integers(5, len(WORDS), n).tolist()) for n in (3, 1, 20, 3, 7, 7, 3, 24, 2)
)


@asynccontextmanager
async def running(directory: Path) -> AsyncGenerator[BatchedEmbedder]:
    engine = load(directory)
    assert isinstance(engine, BatchedEmbedder)
    await engine.start()
    yield engine
    await engine.stop()


def numbers(vector: bytes) -> np.ndarray:
    return np.frombuffer(vector, "<f4")


@pytest.mark.parametrize(
    "shape", [PLAIN, Shape(family="roberta"), Shape(hidden=96, heads=4, intermediate=200)], ids=str
)
async def test_embed_vector_is_independent_of_batch(tmp_path: Path, shape: Shape):
    async with running(write_encoder(tmp_path, shape)) as engine:
        together = await engine.embed(EmbedRequest("m", TEXTS))
        alone = [await engine.embed(EmbedRequest("m", (text,))) for text in TEXTS]
        crowd = await asyncio.gather(
            *(engine.embed(EmbedRequest("m", TEXTS[::-1] * 3)) for _ in range(8))
        )
    assert together.vectors == tuple(each.vectors[0] for each in alone)
    assert {each.vectors for each in crowd} == {together.vectors[::-1] * 3}
    assert len(set(together.vectors)) == len(set(TEXTS))
    assert together.prompt_tokens == sum(map(len, TEXTS))


async def test_embed_normalizes_vectors_unless_disabled(tmp_path: Path):
    async with running(write_encoder(tmp_path)) as engine:
        normal = await engine.embed(EmbedRequest("m", TEXTS))
        raw = await engine.embed(EmbedRequest("m", TEXTS, normalize=False))
    for unit, plain in zip(map(numbers, normal.vectors), map(numbers, raw.vectors), strict=True):
        assert abs(float(np.linalg.norm(unit)) - 1) < 1e-6
        assert np.allclose(unit, plain / np.linalg.norm(plain), atol=1e-6)


async def test_embed_without_normalize_module_returns_raw_vectors(tmp_path: Path):
    async with running(write_encoder(tmp_path, normalize=False)) as engine:
        assert not engine.embedding_info.normalized
        vector = numbers((await engine.embed(EmbedRequest("m", TEXTS[:1]))).vectors[0])
    assert abs(float(np.linalg.norm(vector)) - 1) > 1e-3


async def test_embed_dimensions_truncates_and_renormalizes_vector(tmp_path: Path):
    directory = write_encoder(tmp_path, more={"matryoshka_dimensions": [8, 16]})
    async with running(directory) as engine:
        full = numbers(
            (await engine.embed(EmbedRequest("m", TEXTS[:1], normalize=False))).vectors[0]
        )
        short = numbers((await engine.embed(EmbedRequest("m", TEXTS[:1], dimensions=8))).vectors[0])
    assert np.allclose(short, full[:8] / np.linalg.norm(full[:8]), atol=1e-6)
    with pytest.raises(RequestError, match="8, 16"):
        engine.embedding_info.check_dimensions(12)


def test_embed_dimensions_without_matryoshka_is_rejected(tmp_path: Path):
    engine = load(write_encoder(tmp_path))
    assert isinstance(engine, BatchedEmbedder)
    engine.embedding_info.check_dimensions(PLAIN.hidden)
    with pytest.raises(Unsupported, match="matryoshka"):
        engine.embedding_info.check_dimensions(8)


STATES = np.array([[1, -4], [3, 2], [2, 8]], np.float32)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (Pooling.MEAN, [2, 2]),
        (Pooling.CLS, [1, -4]),
        (Pooling.LAST, [2, 8]),
        (Pooling.WEIGHTED_MEAN, [13 / 6, 24 / 6]),
        (Pooling.MAX, [3, 8]),
        (Pooling.MEAN_SQRT_LEN, [6 / 3**0.5, 6 / 3**0.5]),
    ],
)
def test_pool_states_matches_each_pooling_mode(pooling: Pooling, expected: list[float]):
    assert np.allclose(pool_states(STATES, pooling), expected)


@pytest.mark.parametrize(
    ("mode", "pooling"),
    [
        ("pooling_mode_cls_token", Pooling.CLS),
        ("pooling_mode_mean_tokens", Pooling.MEAN),
        ("pooling_mode_lasttoken", Pooling.LAST),
    ],
)
def test_load_reads_pooling_from_directory(tmp_path: Path, mode: str, pooling: Pooling):
    engine = load(write_encoder(tmp_path, pooling=mode))
    assert isinstance(engine, BatchedEmbedder)
    assert (engine.embedding_info.pooling, engine.embedding_info.max_tokens) == (pooling, 24)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("cls", Pooling.CLS),
        ("mean", Pooling.MEAN),
        ("max", Pooling.MAX),
        ("lasttoken", Pooling.LAST),
        ("mean_sqrt_len_tokens", Pooling.MEAN_SQRT_LEN),
    ],
)
def test_load_reads_pooling_name(tmp_path: Path, name: str, pooling: Pooling):
    write_encoder(tmp_path)
    path = tmp_path / "1_Pooling" / "config.json"
    path.write_text(json.dumps({"pooling_mode": name}))
    engine = load(tmp_path)
    assert isinstance(engine, BatchedEmbedder)
    assert engine.embedding_info.pooling == pooling


def test_load_default_prompt_precedes_texts(tmp_path: Path):
    write_encoder(tmp_path)
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": "query"}))
    engine = load(tmp_path)
    assert isinstance(engine, BatchedEmbedder)
    assert engine.embedding_info.prompt == "query: "


def test_load_bare_directory_uses_default_pooling_and_length(tmp_path: Path):
    engine = load(write_encoder(tmp_path, pooling=None))
    assert isinstance(engine, BatchedEmbedder)
    traits = engine.embedding_info
    assert (traits.pooling, traits.normalized, traits.max_tokens) == (Pooling.MEAN, True, 64)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"architectures": ["XLNetModel"]}, "XLNetModel"),
        ({"hidden_act": "silu"}, "silu"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "decoder"),
        ({"num_attention_heads": 5}, "heads"),
        ({"num_attention_heads": 0}, "heads"),
        ({"num_hidden_layers": 1}, r"encoder\.layer\.1"),
        ({"num_hidden_layers": 3}, r"encoder\.layer\.2"),
    ],
)
def test_load_unsupported_config_raises_with_field_name(
    tmp_path: Path, more: dict[str, object], named: str
):
    with pytest.raises(EngineError, match=named):
        load(write_encoder(tmp_path, more=more))


def test_load_scorer_with_several_labels_raises(tmp_path: Path):
    with pytest.raises(EngineError, match="2 labels"):
        load(write_encoder(tmp_path, SCORER, more={"id2label": {"0": "no", "1": "yes"}}))


@pytest.mark.parametrize(
    ("fields", "sigmoid"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, True),
    ],
)
async def test_score_applies_activation_from_config(
    tmp_path: Path, fields: dict[str, object], sigmoid: bool
):
    engine = load(write_encoder(tmp_path, SCORER, more=fields))
    assert isinstance(engine, BatchedScorer)
    await engine.start()
    pairs = (build_pair(TEXTS[2], 9), build_pair(TEXTS[2], 12))
    own = (await engine.score(ScoreRequest("m", pairs))).scores
    raw = (await engine.score(ScoreRequest("m", pairs, activation=False))).scores
    alone = (await engine.score(ScoreRequest("m", pairs[1:]))).scores
    await engine.stop()
    assert np.allclose(own, [1 / (1 + np.exp(-score)) for score in raw] if sigmoid else raw)
    assert own[1:] == alone
    assert own[0] != own[1], "the start of the second text must matter"


async def test_embed_token_outside_vocab_is_rejected(tmp_path: Path):
    async with running(write_encoder(tmp_path)) as engine:
        with pytest.raises(RequestError, match="99"):
            await engine.embed(EmbedRequest("m", ((5, 99),)))


class FailingNetwork:
    """Fails as a device does that has been lost."""

    vocab = 10

    def compute(self, batch: Sequence[EncoderInput]) -> list[NDArray[np.float32]]:
        raise RuntimeError("CUDA error")


async def test_scorer_on_lost_device_reports_failure() -> None:
    engine = BatchedScorer(FailingNetwork(), "Identity", 8)
    await engine.start()
    with pytest.raises(EngineError):
        await engine.score(ScoreRequest("m", (TokenizedPair((1, 2), (0, 0)),)))
    while engine.health().ready:  # noqa: ASYNC110 - the thread reports it next
        await asyncio.sleep(0)
    assert engine.health().failed
    await engine.stop()
