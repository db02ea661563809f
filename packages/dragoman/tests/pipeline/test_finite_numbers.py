"""Vectors and scores that JSON cannot write: an engine's overflow is its failure."""

from __future__ import annotations

import json
import struct

import pytest
from tests.fuzz.exchange import Request, send_request
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.encoder_requests import (
    EmbeddingInfo,
    Embeddings,
    EmbedRequest,
    RelevanceScores,
    ScoreRequest,
)
from dragoman.core.engine import Health
from dragoman.pipeline.engine_backends import EmbedderBackend, ScorerBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app

NUMBERS = (float("nan"), float("inf"), float("-inf"))


class OverflowingEncoder:
    """Embeds and scores with a number that is not finite."""

    embedding_info = EmbeddingInfo(2, 64)
    max_tokens = 64

    def __init__(self, number: float) -> None:
        self._number = number

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        vectors = [struct.pack("<2f", 1, 0) for _ in request.inputs]
        return Embeddings((*vectors[1:], struct.pack("<2f", 1, self._number)), 2, 1)

    async def score(self, request: ScoreRequest) -> RelevanceScores:
        return RelevanceScores((*(0.5 for _ in request.pairs[1:]), self._number), 1)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["x", "y"]}),
        ("/v1/embeddings", {"input": "x", "encoding_format": "base64"}),
        ("/v2/embed", {"texts": ["x"], "input_type": "classification"}),
        ("/api/embed", {"input": "x"}),
        ("/v1beta/models/e:embedContent", {"content": {"parts": [{"text": "x"}]}}),
        ("/v1/score", {"queries": "x", "documents": ["y", "z"]}),
    ],
)
async def test_infinite_embedding_returns_500(
    path: str, body: dict[str, object], number: float
) -> None:
    engine = OverflowingEncoder(number)
    assert await ask(EmbedderBackend(engine, load_tiny_tokenizer()), path, body) == 500


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("path", ["/v1/score", "/v1/rerank"])
async def test_infinite_score_returns_500(path: str, number: float) -> None:
    engine = OverflowingEncoder(number)
    body: dict[str, object] = {"query": "x", "documents": ["y", "z"]}
    if path == "/v1/score":
        body = {"queries": "x", "documents": ["y", "z"]}
    assert await ask(ScorerBackend(engine, load_tiny_tokenizer()), path, body) == 500


async def ask(backend: EmbedderBackend | ScorerBackend, path: str, body: dict[str, object]) -> int:
    app = build_asgi_app(Models([ServedModel("e", backend, 64, 0)]))
    content = json.dumps({"model": "e", **body}).encode()
    headers = {"content-type": "application/json"}
    response = await send_request(app, Request("POST", path, path, content, headers))
    if response.status == 500:
        assert b"not finite" in response.body
    return response.status
