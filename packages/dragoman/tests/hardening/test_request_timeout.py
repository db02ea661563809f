"""Deadlines and progress checks for an engine that stops yielding: clients get an
error, and readiness fails.

Slow requests without a deadline held slots of vLLM and TGI forever; a hung engine whose
`/health` returns 200 keeps getting traffic.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.fuzz.exchange import Request, Response, send_request
from tests.fuzz.judge import check_response
from tests.pipeline.failing_engine import Clock, sleep_forever
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.encoder_requests import EmbeddingInfo, Embeddings, EmbedRequest
from dragoman.core.engine import Health
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
)
from dragoman.pipeline.engine_backends import EmbedderBackend, EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts
from dragoman_check.rules.responses import check_stream

from .test_engine_faults import Failing, request_of

CHAT = "/v1/chat/completions"


def app_of(options: ServingOptions) -> tuple[ASGIApp, Failing]:
    engine = Failing()
    return build_asgi_app(
        Models([ServedModel("e", EventBackend(engine), 4096, 0)]), options=options
    ), engine


async def ask(
    app: ASGIApp, text: str, path: str, headers: Mapping[str, str] | None = None, **fields: Any
) -> Response:
    request = request_of(text, path, fields, "e")
    headers = {**request.headers, **(headers or {})}
    response = await send_request(app, Request("POST", path, path, request.body, headers))
    check_response(request, response, failing=True)
    return response


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/generate", "/api/chat"]
)
@pytest.mark.parametrize("phase", [0, 2])
async def test_full_response_after_deadline_returns_504(path: str, phase: int) -> None:
    app, engine = app_of(ServingOptions(request_timeout=0.05))
    assert (await ask(app, f"fault hang {phase}", path, stream=False)).status == 504
    assert engine.running == 0


async def test_stream_after_deadline_ends_with_error() -> None:
    app, engine = app_of(ServingOptions(request_timeout=0.05))
    response = await ask(app, "fault hang 2", CHAT, stream=True)
    assert b'"error"' in response.body
    assert b"[DONE]" not in response.body
    assert engine.running == 0


async def test_timeout_header_lowers_but_never_raises_deadline() -> None:
    app, _ = app_of(ServingOptions())
    header = {"x-dragoman-timeout": "0.05"}
    assert (await ask(app, "fault hang 2", CHAT, header)).status == 504
    app, _ = app_of(ServingOptions(request_timeout=0.05))
    assert (await ask(app, "fault hang 2", CHAT, {"x-dragoman-timeout": "3600"})).status == 504


@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "1e9", "٣", "12345678", "1s"])
async def test_timeout_header_invalid_value_returns_400(value: str) -> None:
    app, _ = app_of(ServingOptions())
    header = {"x-dragoman-timeout": value.encode().decode("latin-1")}
    assert (await ask(app, "fault hang 9", CHAT, header)).status == 400


async def test_health_returns_503_when_running_requests_stall() -> None:
    clock = Clock()
    engine = Failing()
    models = Models(
        [ServedModel("e", EventBackend(engine), 4096, 0)], clock=clock, sleep=sleep_forever
    )
    app = build_asgi_app(models, options=ServingOptions(progress_timeout=30.0))
    (place,) = models.slots

    async def health() -> int:
        await models.poll(place)
        return (await send_request(app, Request("GET", "/health", "/health"))).status

    asking = asyncio.create_task(ask(app, "fault hang 2", CHAT))
    while not engine.running:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert await health() == 200
    clock.now += 31
    assert await health() == 503
    assert (await ask(app, "fault none 9", CHAT)).status == 200
    assert await health() == 200
    clock.now += 31
    assert await health() == 503
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await health() == 200
    clock.now += 1000
    assert await health() == 200


class DelayedEngine(Failing):
    """An engine that answers after this number of iterations of the event loop."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self._turns = turns

    async def _generate(self, kind: str, phase: int) -> AsyncGenerator[Event]:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        for event in (
            Started(1),
            TextDelta(0, "x"),
            ChoiceFinished(0, FinishReason.STOP),
            Finished(Usage(1, 1)),
        ):
            yield event


@asynccontextmanager
async def impatient(turns: int) -> AsyncGenerator[ASGIApp]:
    options = ServingOptions(timeouts=StreamTimeouts(headers=0.0, admitted_headers=0.0))
    yield build_asgi_app(
        Models([ServedModel("e", EventBackend(DelayedEngine(turns)), 4096, 0)]), options=options
    )


@pytest.mark.parametrize("turns", range(12))
async def test_keepalive_due_with_headers_preserves_event_order(turns: int) -> None:
    """Found by the fuzzer: sequence numbers decreased if both happened in one iteration
    of the event loop.
    """
    async with impatient(turns) as app:
        response = await ask(app, "fault none 9", "/v1/responses", stream=True, store=False)
    events = check_stream(response.body)
    assert json.dumps(events).count('"response.completed"') == 1


class HangingEmbedder:
    """An engine that never answers.

    in_flight: number of calls that were not cancelled.
    """

    embedding_info = EmbeddingInfo(1, 64)

    def __init__(self) -> None:
        self.in_flight = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()

    async def embed(self, request: EmbedRequest) -> Embeddings:
        self.in_flight += 1
        try:
            await asyncio.Event().wait()
            raise AssertionError
        finally:
            self.in_flight -= 1


EMBEDDING_BODIES = {
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v1/score": {"queries": "x", "documents": ["y"]},
}


@pytest.mark.parametrize("by_header", [False, True])
@pytest.mark.parametrize("path", EMBEDDING_BODIES)
async def test_embeddings_and_scores_after_deadline_return_504(path: str, by_header: bool) -> None:
    engine = HangingEmbedder()
    model = ServedModel("e", EmbedderBackend(engine, load_tiny_tokenizer()), 64, 0)
    app = build_asgi_app(
        Models([model]), options=ServingOptions(request_timeout=None if by_header else 0.05)
    )
    headers = {
        "content-type": "application/json",
        **({"x-dragoman-timeout": "0.05"} if by_header else {}),
    }
    body = json.dumps({"model": "e", **EMBEDDING_BODIES[path]}).encode()
    response = await send_request(app, Request("POST", path, path, body, headers))
    assert response.status == 504
    assert json.loads(response.body)["error"]["code"] == "timeout"
    assert engine.in_flight == 0
    headers["x-dragoman-timeout"] = "soon"
    assert (await send_request(app, Request("POST", path, path, body, headers))).status == 400
