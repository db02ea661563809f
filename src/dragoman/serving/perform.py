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
from .body import Share
from .endpoint import EnvelopeOf, Handler, Http, answer_of, make
from .leaving import nobody
from .service import Service


class Performed(Struct, frozen=True):
    """What a client would have got. id: of the request."""

    status: int
    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Performer:
    """handlers: of the paths that can be asked, each by a POST of JSON."""

    service: Service
    handlers: Mapping[str, Handler]
    envelope: EnvelopeOf

    async def __call__(self, caller: Caller, path: str, body: bytes) -> Performed:
        """Never raises for what the request does: that is its status. Cancelling it frees the engine."""
        exchange = _Exchange(body)
        http = Http(
            self.service,
            msgspec.structs.replace(caller, background=True),
            Headers({"content-type": "application/json"}),
            {},
            self.service.ids.new("req_"),
            self.service.clock.monotonic(),
            self.envelope(path, {}),
            exchange.receive,
            nobody,
            b"",
            path,
            Share(self.service.bodies),
        )
        try:
            made = await make(self.handlers[path](http))
        finally:
            http.share.give_back()
        await answer_of(http, made)(nobody, exchange.send)
        return Performed(exchange.status, http.id, b"".join(exchange.pieces))


class _Exchange:
    """Both ends of a connection that stays until it is answered."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 0
        self.pieces: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.pieces.append(message.get("body", b""))
