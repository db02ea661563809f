"""An engine dies during a response: the errors of each dialect, the server's state, and
recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from tests.pipeline.failing_engine import Clock, FailingEngine, sleep_forever
from tests.serving.harness import load_tiny_tokenizer

from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import Health
from dragoman.core.events import Event, Started, TextDelta
from dragoman.core.request import GenerateRequest
from dragoman.core.token_engine import OutputCallback, Scheduled, TokenRequest
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend, TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts
from dragoman.settings import Settings

HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 50},
}
ENDS = {
    "/v1/chat/completions": (b'data: {"error":', b"[DONE]"),
    "/v1/completions": (b'data: {"error":', b"[DONE]"),
    "/v1/responses": (b"event: response.failed", b"response.completed"),
    "/v1/messages": (b"event: error", b"message_stop"),
}


@pytest.mark.parametrize("path", BODIES)
async def test_engine_death_mid_response_returns_error_and_recovers(path: str) -> None:
    engine = FailingEngine(load_tiny_tokenizer())
    clock = Clock()
    models = Models(
        [ServedModel("m", EventBackend(engine), 4096, 0)], clock=clock, sleep=sleep_forever
    )
    (place,) = models.slots
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        ask = {"model": "m", **BODIES[path]}
        engine.die_at = 4
        answer = asyncio.create_task(client.post(path, json={**ask, "stream": True}))
        while not engine.dead:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await client.get("/health")).status_code == 503

        await models.poll(place)
        error, success = ENDS[path]
        output = (await answer).content
        assert error in output
        assert success not in output
        rejected = await client.post(path, json=ask)
        assert (rejected.status_code in (503, 529), rejected.headers["retry-after"]) == (True, "1")

        engine.die_at = None
        clock.now += 1
        await models.poll(place)
        assert (await client.get("/health")).status_code == 200
        assert (await client.post(path, json=ask)).status_code == 200
    await models.stop()


class UnstoppableEngine:
    """An engine that reports a failure, and whose `stop` ends no stream.

    kind: how its stream continues.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.failed = False
        self.waiting = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def start(self) -> None:
        self.failed = False

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health(not self.failed, "died" if self.failed else None, failed=self.failed)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        if self.kind != "before":
            yield Started(3)
            yield TextDelta(0, "Hello")
        self.waiting += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.kind == "swallows":
                yield TextDelta(0, " there")
            elif self.kind == "converts":
                raise ValueError from None
            raise
        finally:
            self.waiting -= 1


class UnstoppableTokenEngine(UnstoppableEngine):
    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        if self.kind != "before":
            deliver(Scheduled(request.id, 0))
        self.waiting += 1

    def abort(self, id: str) -> None:
        self.waiting -= 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "kind", ["before", "in_mid_answer", "swallows", "converts", "tokens", "tokens before"]
)
@pytest.mark.parametrize("path", BODIES)
async def test_failed_engine_ignoring_stop_ends_all_clients(
    path: str, kind: str, stream: bool
) -> None:
    """It reports a failure and ignores `stop`: clients used to wait forever."""
    engine: UnstoppableEngine
    if kind.startswith("tokens"):
        (tiny,) = build_models(Settings(), SystemClock())
        assert isinstance(tiny.backend, TokenBackend)
        engine = UnstoppableTokenEngine(kind.partition(" ")[2])
        model = replace(tiny, name="m", backend=replace(tiny.backend, engine=engine))
    else:
        engine = UnstoppableEngine(kind)
        model = ServedModel("m", EventBackend(engine), 4096, 0)
    models = Models([model], clock=Clock(), sleep=sleep_forever)
    (place,) = models.slots
    app = build_asgi_app(
        models, options=ServingOptions(timeouts=StreamTimeouts(headers=0.0, admitted_headers=0.0))
    )
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        answer = asyncio.create_task(
            client.post(path, json={"model": "m", **BODIES[path], "stream": stream})
        )
        while not engine.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        engine.failed = True
        await models.poll(place)
        await models.poll(place)
        output = await answer
    error, success = ENDS[path]
    if stream:
        assert error in output.content
        assert success not in output.content
    else:
        assert (output.status_code, "error" in output.json()) == (500, True)
    assert engine.waiting == 0
    assert model.progress.running == 0
