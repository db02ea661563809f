"""Overload: a queue without limits, or limited only by requests, would hold hours of
work and unlimited memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from dragoman.core.capabilities import Capabilities
from dragoman.core.engine import Health
from dragoman.core.errors import QueueFull
from dragoman.core.events import FinishReason
from dragoman.core.token_engine import Ended, OutputCallback, Scheduled, TokenRequest
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import TokenBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.request_queue import RequestQueue
from dragoman.pipeline.served_model import RequestQueues
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings


class ManualEngine:
    """An engine that starts and ends requests on demand, up to a limit.

    add_calls: number of calls of `add`.
    """

    def __init__(self, most: int, capabilities: Capabilities) -> None:
        self._most = most
        self.add_calls = 0
        self.capabilities = capabilities
        self.live: dict[str, OutputCallback] = {}

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        self.add_calls += 1
        if len(self.live) >= self._most:
            raise QueueFull("Full.")
        self.live[request.id] = deliver

    def begin(self) -> None:
        for id, deliver in self.live.items():
            deliver(Scheduled(id, 0))

    def finish(self) -> None:
        self.begin()
        live = self.live
        self.live = {}
        for id, deliver in live.items():
            deliver(Ended(id, FinishReason.STOP))

    def abort(self, id: str) -> None:
        self.live.pop(id, None)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def health(self) -> Health:
        return Health()


@dataclass
class OverloadedServer:
    engine: ManualEngine
    queue: RequestQueue
    client: httpx2.AsyncClient

    def ask(self, prompt: list[int], **fields: Any) -> asyncio.Task[httpx2.Response]:
        return asyncio.create_task(
            self.client.post("/v1/completions", json={"prompt": prompt, **fields})
        )

    async def until(self, count: int) -> None:
        await self.reach(lambda: len(self.engine.live) == count)

    async def reach(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0)


@asynccontextmanager
async def overloaded_server(
    *, tokens: int = 1000, requests: int = 1000
) -> AsyncGenerator[OverloadedServer]:
    (tiny,) = build_models(Settings(), SystemClock())
    assert isinstance(tiny.backend, TokenBackend)
    engine = ManualEngine(requests, tiny.capabilities)
    queue = RequestQueue(max_tokens=tokens)
    backend = replace(tiny.backend, engine=engine)
    models = Models([replace(tiny, backend=backend, queues=RequestQueues(queue))])
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield OverloadedServer(engine, queue, client)


def is_overloaded(answer: httpx2.Response) -> bool:
    code = answer.json()["error"]["code"] if answer.status_code == 503 else None
    return code == "overloaded" and answer.headers["retry-after"] == "1"


async def test_queue_rejects_prompts_over_token_limit():
    async with overloaded_server(tokens=100) as server:
        first = server.ask([5] * 60)
        await server.until(1)
        assert is_overloaded(await server.ask([5] * 60))
        assert is_overloaded(await server.ask([5] * 60, stream=True))
        small = server.ask([5] * 40)
        await server.until(2)
        assert server.queue.waiting_tokens == 100
        server.engine.begin()
        await server.reach(lambda: server.queue.waiting_tokens == 0)
        third = server.ask([5] * 100)
        await server.until(3)
        server.engine.finish()
        assert [(await answer).status_code for answer in (first, small, third)] == [200, 200, 200]
        assert server.queue.waiting_tokens == 0


async def test_queue_admits_single_prompt_over_token_limit():
    async with overloaded_server(tokens=10) as server:
        answer = server.ask([5] * 500)
        await server.until(1)
        server.engine.finish()
        assert (await answer).status_code == 200


async def test_queue_disconnect_frees_waiting_tokens():
    async with overloaded_server(tokens=100) as server:
        gone = server.ask([5] * 100)
        await server.until(1)
        gone.cancel()
        await server.until(0)
        assert server.queue.waiting_tokens == 0


async def test_engine_refusal_rejects_new_requests_until_one_finishes():
    """Rendering and tokenizing a prompt before its rejection would take time from
    running requests.
    """
    async with overloaded_server(requests=1) as server:
        first = server.ask([5])
        await server.until(1)
        count = server.engine.add_calls
        for _ in range(10):
            assert is_overloaded(await server.ask([5]))
        assert server.engine.add_calls == count + 1
        server.engine.finish()
        assert (await first).status_code == 200
        second = server.ask([5])
        await server.until(1)
        server.engine.finish()
        assert (await second).status_code == 200


async def test_overload_rejections_bypass_start_pacing():
    """A burst starts a few requests per loop iteration; rejections are cheap and sent
    at once.
    """
    async with overloaded_server(requests=1) as server:
        first = server.ask([5])
        await server.until(1)
        assert is_overloaded(await server.ask([5]))
        burst = [server.ask([5]) for _ in range(400)]
        wrong = server.ask([5], temperature=-1)
        turns = 0
        while not all(task.done() for task in (*burst, wrong)):
            await asyncio.sleep(0)
            turns += 1
        assert wrong.result().status_code == 400
        assert all(is_overloaded(task.result()) for task in burst)
        # At four per iteration it would take more than a hundred iterations.
        assert turns < 40
        server.engine.finish()
        assert (await first).status_code == 200
