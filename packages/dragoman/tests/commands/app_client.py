"""A client of an ASGI application in the same event loop; in virtual time, the machine
does not affect it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message


class AppResponse:
    """Implements `LoadResponse`: each piece of the body is available when the
    application has sent it.
    """

    def __init__(
        self, status: int, sent: asyncio.Queue[Message], task: asyncio.Future[None]
    ) -> None:
        self.status = status
        self._sent = sent
        self._task = task
        self._has_more = True

    async def read(self) -> bytes | None:
        if not self._has_more:
            await self._task
            return None
        message = await self._sent.get()
        self._has_more = message.get("more_body", False)
        return message.get("body", b"")

    async def read_all(self, max_bytes: int) -> bytes:
        body = b""
        while len(body) <= max_bytes and (piece := await self.read()) is not None:
            body += piece
        return body

    def close(self) -> None:
        if self._has_more:
            self._task.cancel()


class AppClient:
    """Implements `LoadClient`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AppResponse:
        sent = asyncio.Queue[Message]()
        requests = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in requests:
                return message
            await asyncio.Event().wait()
            raise AssertionError("the client stays")

        target = urlsplit(url)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": target.path,
            "raw_path": target.path.encode(),
            "root_path": "",
            "query_string": target.query.encode(),
            "headers": [
                (b"host", target.netloc.encode()),
                *((k.encode(), v.encode()) for k, v in headers.items()),
            ],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }
        task = asyncio.ensure_future(self._app(scope, receive, sent.put))  # pyright: ignore[reportArgumentType] - as awaitable
        start = await sent.get()
        return AppResponse(start["status"], sent, task)
