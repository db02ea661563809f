"""Routing headers of a request reach the engine: its session, its rank, the client's
trace.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import msgspec
import pytest

from dragoman.core.request import Extras
from dragoman.core.token_engine import TokenRequest
from dragoman.engines import tiny
from dragoman.engines.base_engine import TOKEN_CAPABILITIES, BaseTokenEngine
from dragoman.launch.plugin import build_served_model
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Recorder(BaseTokenEngine):
    """An engine that records its requests."""

    capabilities = msgspec.structs.replace(
        TOKEN_CAPABILITIES,
        parameters=TOKEN_CAPABILITIES.parameters | {"session_id", "data_parallel_rank"},
    )

    def __init__(self) -> None:
        super().__init__(tiny.find_bundled_model(), max_model_len=4096)
        self.extras: list[Extras] = []
        self.traces: list[dict[str, str] | None] = []

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        self.extras.append(request.extras)
        self.traces.append(None if request.trace is None else request.trace.build_headers())
        yield 300


class WithoutSessions(Recorder):
    """An engine that does not support sessions."""

    capabilities = TOKEN_CAPABILITIES


async def send(engine: Recorder, headers: dict[str, str], **body: Any) -> httpx2.Response:
    models = Models([build_served_model(engine, Settings(), SystemClock(), own_name="m")])
    await models.start()
    try:
        transport = httpx2.ASGITransport(build_asgi_app(models))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            payload = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **body}
            return await client.post("/v1/chat/completions", json=payload, headers=headers)
    finally:
        await models.stop()


@pytest.mark.parametrize(
    ("headers", "body", "extras"),
    [
        ({}, {}, Extras()),
        ({"X-Session-ID": 'a"b'}, {}, Extras(session_id='a"b')),
        ({}, {"session_id": "mine"}, Extras(session_id="mine")),
        ({"x-session-id": "other"}, {"session_id": "mine"}, Extras(session_id="mine")),
        ({"X-data-parallel-rank": "03"}, {"session_id": ""}, Extras(data_parallel_rank=3)),
    ],
)
async def test_session_and_rank_headers_reach_engine(
    headers: dict[str, str], body: dict[str, Any], extras: Extras
) -> None:
    engine = Recorder()
    answer = await send(engine, headers, **body)
    assert answer.status_code == 200, answer.text
    assert engine.extras == [extras]


async def test_session_unsupported_by_engine_ignored_without_warning() -> None:
    engine = WithoutSessions()
    answer = await send(engine, {"x-session-id": "a"}, session_id="b")
    assert answer.status_code == 200
    assert "session_id" not in answer.headers.get("x-dragoman-warnings", "")
    assert engine.extras == [Extras()]


async def test_cache_threshold_unsupported_by_engine_warns() -> None:
    engine = WithoutSessions()
    answer = await send(
        engine, {"x-cache-threshold-finish-reason": "true"}, cache_hit_threshold=0.5
    )
    warnings = answer.headers["x-dragoman-warnings"]
    assert "cache_hit_threshold is ignored" in warnings
    assert "x-cache-threshold-finish-reason is ignored" in warnings
    # Every engine has at least the share 0.
    answer = await send(engine, {"x-cache-threshold-finish-reason": "0"}, cache_hit_threshold=0)
    assert "x-dragoman-warnings" not in answer.headers
    assert engine.extras == [Extras(), Extras()]


async def test_trace_headers_passed_to_engine() -> None:
    engine = Recorder()
    await send(engine, {"traceparent": PARENT, "tracestate": "vendor=1"})
    await send(engine, {})
    assert engine.traces == [{"traceparent": PARENT, "tracestate": "vendor=1"}, None]
