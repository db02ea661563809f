"""A request that no client waits for: the very handlers of its route, without a socket, and behind all others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.types import Message

from .auth import Caller
from .body import BodyMemoryShare
from .disconnect import never
from .endpoint import EnvelopeResolver, Handler, HttpRequest, build_response, call_handler
from .service import Service


class InternalResponse(Struct, frozen=True):
    """What a client would have got. id: of the request."""

    status: int
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class InternalClient:
    """handlers: of the paths that can be asked, each by a POST of JSON."""

    service: Service
    handlers: Mapping[str, Handler]
    envelope: EnvelopeResolver

    async def __call__(self, caller: Caller, path: str, body: bytes) -> InternalResponse:
        """Never raises for what the request does: that is its status. Cancelling it frees the engine."""
        connection = _InMemoryConnection(body)
        http = HttpRequest(
            self.service,
            msgspec.structs.replace(caller, is_background=True),
            Headers({"content-type": "application/json"}),
            {},
            self.service.ids.new("req_"),
            self.service.clock.monotonic(),
            self.envelope(path, {}),
            connection.receive,
            never,
            b"",
            path,
            BodyMemoryShare(self.service.body_budget),
        )
        try:
            result = await call_handler(self.handlers[path](http))
        finally:
            http.body_memory.release()
        await build_response(http, result)(never, connection.send)
        return InternalResponse(connection.status, http.id, b"".join(connection.chunks))


class _InMemoryConnection:
    """Both ends of a connection that stays until it is answered."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.chunks: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.chunks.append(message.get("body", b""))
