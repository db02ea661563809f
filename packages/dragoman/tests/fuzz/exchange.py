"""Send one request to an ASGI application without a client library, which would refuse
to send malformed requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message

LIMIT = 60.0
"""Seconds after which a request counts as hung."""


@dataclass(frozen=True)
class Request:
    """route: the path as the application's table has it. leave_after: writes after
    which the client disconnects.
    """

    method: str
    route: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    query: bytes = b""
    leave_after: int | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}?{self.query!r} {dict(self.headers)} {self.body[:2000]!r}"


@dataclass(frozen=True)
class Response:
    """is_complete: the last piece of the body was sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_complete: bool

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith(
            ("text/event-stream", "application/x-ndjson")
        )


async def send_request(app: ASGIApp, request: Request) -> Response:
    """Send a request. Raises TimeoutError if it hangs, and the application's
    exceptions.
    """
    connection = _Connection(request)
    async with asyncio.timeout(LIMIT):
        await app(connection.scope(), connection.receive, connection.send)
    return connection.response()


class _Connection:
    def __init__(self, request: Request) -> None:
        self._request = request
        # In two pieces, as from a network.
        middle = len(request.body) // 2
        self._pieces = [request.body[:middle], request.body[middle:]]
        self._left = asyncio.Event()
        self._status = 0
        self._headers = dict[str, str]()
        self._body = bytearray()
        self._is_complete = False
        self._writes = 0
        if request.leave_after == 0:
            self._left.set()

    def scope(self) -> dict[str, object]:
        request = self._request
        headers = {"host": "localhost", **request.headers}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode("utf-8", "replace"),
            "root_path": "",
            "query_string": request.query,
            "headers": [
                (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
            ],
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
        }

    async def receive(self) -> Message:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self._status, "two responses to one request"
            self._status = message["status"]
            self._headers = {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in message["headers"]
            }
        else:
            assert self._status, "a body before its headers"
            assert not self._is_complete, "a body piece after the end of the body"
            self._body += message.get("body", b"")
            self._is_complete = not message.get("more_body", False)
        self._writes += 1
        if self._request.leave_after is not None and self._writes >= self._request.leave_after:
            self._left.set()
        # A transport lets other tasks run; without this a stream would never notice a
        # disconnect.
        await asyncio.sleep(0)

    def response(self) -> Response:
        return Response(self._status, self._headers, bytes(self._body), self._is_complete)
