"""Fairness between keys: a key that sends more than a server's capacity does not affect
the others.

Measured before: with one key at ten times the capacity, 2 of another key's 21 requests
were answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from dragoman.core.capabilities import Capabilities
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
from dragoman.core.request import GenerateRequest
from dragoman.core.token_engine import Ended, OutputCallback, Scheduled, TokenRequest
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EmbedderBackend, EventBackend, TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.request_queue import RequestQueue
from dragoman.pipeline.served_model import RequestQueues, ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

SLOTS = 4
WAITING = 8
GREEDY = "greedy-key"
MODEST = "modest-key"


class Stepped:
    """Base class of engines that do nothing until a test calls `step`, which ends the
    oldest request.
    """

    def __init__(self) -> None:
        self.pending: list[Callable[[], None]] = []
        self.most = 0

    def step(self) -> None:
        if self.pending:
            self.pending.pop(0)()

    def _enter(self, end: Callable[[], None]) -> None:
        self.pending.append(end)
        self.most = max(self.most, len(self.pending))

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()


class SteppedTokens(Stepped):
    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        def end() -> None:
            deliver(Scheduled(request.id, 0))
            deliver(Ended(request.id, FinishReason.STOP))

        self._enter(end)

    def abort(self, id: str) -> None: ...


class SteppedEvents(Stepped):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        turn = asyncio.Event()
        self._enter(turn.set)
        await turn.wait()
        for event in (
            Started(3),
            TextDelta(0, "x"),
            ChoiceFinished(0, FinishReason.STOP),
            Finished(Usage(3, 1)),
        ):
            yield event


class SteppedEmbedder(Stepped):
    embedding_info = EmbeddingInfo(1, 64)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        turn = asyncio.Event()
        self._enter(turn.set)
        await turn.wait()
        return Embeddings(tuple(b"\0\0\x80\x3f" for _ in request.inputs), 1, 1)


@dataclass
class Server:
    engine: Stepped
    path: str
    client: httpx2.AsyncClient

    def ask(self, key: str, **fields: Any) -> asyncio.Task[httpx2.Response]:
        content = {"input": "x"} if "embeddings" in self.path else {"prompt": "x", **fields}
        headers = {"authorization": f"Bearer {key}"}
        return asyncio.create_task(self.client.post(self.path, json=content, headers=headers))

    async def settle(self) -> None:
        for _ in range(80):
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(kind: str, keys: tuple[str, ...] = (GREEDY, MODEST)) -> AsyncGenerator[Server]:
    (tiny,) = build_models(Settings(), SystemClock())
    assert isinstance(tiny.backend, TokenBackend)
    queue = RequestQueue(WAITING)
    path = "/v1/completions"
    match kind:
        case "tokens":
            engine = SteppedTokens()
            backend = replace(tiny.backend, engine=engine)
            model = replace(tiny, backend=backend, queues=RequestQueues(queue))
        case "events":
            engine = SteppedEvents()
            queue = RequestQueue(WAITING, slots=SLOTS, limits_concurrency=True)
            model = ServedModel("e", EventBackend(engine), 4096, 0, queues=RequestQueues(queue))
        case _:
            engine = SteppedEmbedder()
            path = "/v1/embeddings"
            backend = EmbedderBackend(engine, tiny.backend.tokenizer)
            model = ServedModel("e", backend, 64, 0, queues=RequestQueues(encoding=queue))
    app = build_asgi_app(Models([model]), options=ServingOptions(api_key=keys))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        yield Server(engine, path, client)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["tokens", "events", "embeddings"])
async def test_key_within_share_is_admitted_during_flood_by_other_key(
    kind: str, stream: bool
) -> None:
    async with serving(kind) as server:
        flood: list[asyncio.Task[httpx2.Response]] = []
        modest: list[asyncio.Task[httpx2.Response]] = []
        for turn in range(60):
            flood += [server.ask(GREEDY, stream=stream) for _ in range(5)]
            if turn % 3 == 0:
                modest.append(server.ask(MODEST, stream=stream))
            await server.settle()
            server.engine.step()
            await server.settle()
        while not all(task.done() for task in (*flood, *modest)):
            server.engine.step()
            await server.settle()
        statuses = [task.result().status_code for task in modest]
        assert statuses == [200] * 20
        assert all(b"error" not in task.result().content for task in modest)
        rejected = [task.result() for task in flood if task.result().status_code != 200]
        assert all(
            answer.status_code == 503 and answer.headers["retry-after"] == "1"
            for answer in rejected
        )
        assert len(flood) - len(rejected) >= 40


async def test_single_key_uses_one_queue() -> None:
    """Priorities and the engine's own schedule work as without keys: the engine gets
    all waiting requests.
    """
    async with serving("tokens", (GREEDY,)) as server:
        requests = [server.ask(GREEDY) for _ in range(WAITING + 2)]
        await server.settle()
        assert server.engine.most == WAITING
        while not all(task.done() for task in requests):
            server.engine.step()
            await server.settle()
        assert sorted(task.result().status_code for task in requests) == [200] * WAITING + [503] * 2


@pytest.mark.parametrize("kind", ["events", "embeddings"])
async def test_queue_limits_hold_for_engines_without_queue(kind: str) -> None:
    async with serving(kind, ()) as server:
        most = WAITING + (SLOTS if kind == "events" else 0)
        requests = [server.ask("") for _ in range(most + 5)]
        await server.settle()
        assert server.engine.most == (SLOTS if kind == "events" else WAITING)
        rejected = [task.result() for task in requests if task.done()]
        assert [answer.status_code for answer in rejected] == [503] * 5
        while not all(task.done() for task in requests):
            server.engine.step()
            await server.settle()
        assert sorted(task.result().status_code for task in requests) == [200] * most + [503] * 5


@pytest.mark.parametrize("kind", ["tokens", "events", "embeddings"])
async def test_disconnect_while_queued_frees_queue_slot(kind: str) -> None:
    async with serving(kind) as server:
        requests = [server.ask(GREEDY) for _ in range(WAITING)]
        await server.settle()
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        server.engine.pending.clear()
        again = [server.ask(MODEST) for _ in range(WAITING)]
        await server.settle()
        while not all(task.done() for task in again):
            server.engine.step()
            await server.settle()
        assert [task.result().status_code for task in again] == [200] * WAITING
