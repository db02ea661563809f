"""A client of an application in the same event loop; in virtual time, nothing of the machine is in what it measures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import httpx2
from starlette.types import ASGIApp, Message


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
