"""The encoder in numpy, and the one that is served where torch is installed, give the
vectors and scores of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.core.encoder_requests import EmbedRequest, ScoreRequest
from dragoman.engines.batched_encoder import BatchedEmbedder, BatchedScorer
from dragoman.engines.encoder_engine import load
from dragoman.launch.engine_choice import read_directory_config
from dragoman.launch.engines.encoder.build import build_encoder
from dragoman.launch.engines.encoder.library import runs_on_library
from dragoman.pipeline.engine_backends import EmbedderBackend, ScorerBackend
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

from .directories import WORDS, Shape, build_pair, write_encoder

torch: Any = pytest.importorskip("torch", reason="needs torch (CPU) to compare with")
transformers: Any = pytest.importorskip("transformers", reason="needs transformers to compare with")

pytestmark = pytest.mark.torch

SHAPES = [
    Shape(),
    Shape(family="roberta"),
    Shape(act="relu", layers=4, hidden=96, heads=6),
    Shape(hidden=24, heads=3),
]
TEXTS = [
    tuple(np.random.default_rng(n).integers(5, len(WORDS), n).tolist())
    for n in (1, 2, 7, 8, 40, 64)
]


def load_served(directory: Path) -> BatchedEmbedder | BatchedScorer:
    assert runs_on_library(read_directory_config(directory))
    backend = build_encoder(Settings(), SystemClock(), str(directory)).backend
    assert isinstance(backend, EmbedderBackend | ScorerBackend)
    assert isinstance(backend.engine, BatchedEmbedder | BatchedScorer)
    return backend.engine


Load = Callable[[Path], BatchedEmbedder | BatchedScorer]
each_engine = pytest.mark.parametrize("load", [load, load_served], ids=["numpy", "served"])


@each_engine
@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_embed_vectors_match_transformers(tmp_path: Path, shape: Shape, load: Load):
    write_encoder(tmp_path, shape, pooling=None)
    engine = load(tmp_path)
    assert isinstance(engine, BatchedEmbedder)
    model = transformers.AutoModel.from_pretrained(tmp_path, dtype=torch.float32)
    await engine.start()
    vectors = await engine.embed(EmbedRequest("m", tuple(TEXTS), normalize=False))
    await engine.stop()
    for ids, vector in zip(TEXTS, vectors.vectors, strict=True):
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        expected = states.mean(dim=0).numpy()
        assert np.abs(np.frombuffer(vector, "<f4") - expected).max() < 1e-5


@each_engine
@pytest.mark.parametrize(
    ("family", "tokenizer", "has_segments"),
    [
        ("bert", None, True),
        ("bert", {"tokenizer_class": "BertTokenizer"}, True),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        (
            "bert",
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_input_names": ["input_ids", "token_type_ids"],
            },
            True,
        ),
        ("roberta", None, False),
        ("roberta", {"tokenizer_class": "RobertaTokenizer"}, False),
    ],
)
async def test_scores_match_transformers(
    tmp_path: Path,
    family: str,
    tokenizer: dict[str, Any] | None,
    has_segments: bool,
    load: Load,
):
    write_encoder(tmp_path, Shape(family=family, task="ForSequenceClassification"))
    if tokenizer is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    engine = load(tmp_path)
    assert isinstance(engine, BatchedScorer)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path, dtype=torch.float32
    )
    pairs = tuple(build_pair(ids, len(ids) // 2) for ids in TEXTS)
    await engine.start()
    scores = await engine.score(ScoreRequest("m", pairs))
    await engine.stop()
    for pair, score in zip(pairs, scores.scores, strict=True):
        types = list(pair.types if has_segments else (0,) * len(pair.ids))
        with torch.no_grad():
            logit = model(torch.tensor([pair.ids]), token_type_ids=torch.tensor([types])).logits[
                0, 0
            ]
        assert abs(torch.sigmoid(logit).item() - score) < 1e-5
