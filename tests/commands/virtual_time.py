"""An event loop whose clock jumps to the next timer, and a client of an application in the same loop.

What takes seconds takes none, and times are what the program computed: nothing of the machine is in them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import httpx2
from starlette.types import ASGIApp, Message

T = TypeVar("T")


class _VirtualSelector(selectors.DefaultSelector):
    """Waits for no one: the time until the next timer passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            # Only another thread can wake the loop.
            return super().select(None)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class AppTransport(httpx2.AsyncBaseTransport):
    """Streams: each piece of a body is there when the application has sent it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = asyncio.Queue[Message]()
        body = await request.aread()
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in requests:
                return message
            await asyncio.Event().wait()
            raise AssertionError("the client stays")

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.url.path,
            "raw_path": request.url.raw_path,
            "root_path": "",
            "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        task = asyncio.ensure_future(self._app(scope, receive, sent.put))  # pyright: ignore[reportArgumentType] - as awaitable

        async def pieces() -> AsyncGenerator[bytes]:
            more = True
            while more:
                message = await sent.get()
                more = message.get("more_body", False)
                yield message.get("body", b"")
            await task

        start = await sent.get()
        return httpx2.Response(start["status"], headers=start["headers"], content=pieces())
