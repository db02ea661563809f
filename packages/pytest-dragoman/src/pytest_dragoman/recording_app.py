"""Records the requests and the responses of an ASGI application, and edits its streams."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dragoman.http.asgi_extensions import DIRECT_WRITE_EXTENSION
from dragoman.http.exchange import HttpExchange

from .sent_request import Ending
from .stream_edits import (
    MALFORMED_PREFIX,
    SPOILERS,
    Frame,
    FrameSplitter,
    Pause,
    build_edits,
    edit_frame,
)
from .traffic import Exchange, Traffic

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAM_TYPES = {"text/event-stream": True, "application/x-ndjson": False}
"""Content types of streams, and whether they are server-sent events."""


class RecordingApp:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app = app
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = self._traffic.begin(scope)
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extensions = dict(scope.get("extensions") or {})
        # Written past `send`, the stream could not be edited.
        connection = extensions.pop(DIRECT_WRITE_EXTENSION, None)
        assert isinstance(connection, HttpExchange)
        response = _Response(exchange, self._traffic, connection, send)

        async def record_body() -> Message:
            message = await receive()
            exchange.request.body += message.get("body", b"")
            return message

        await self._app({**scope, "extensions": extensions}, record_body, response.send)
        await response.close()


class _Response:
    """The response of one request on its way to the client."""

    def __init__(
        self, exchange: Exchange, traffic: Traffic, connection: HttpExchange, send: Send
    ) -> None:
        self._exchange = exchange
        self._traffic = traffic
        self._connection = connection
        self._send = send
        self._splitter: FrameSplitter | None = None
        self._edits = build_edits(())
        self._held_start: Message | None = None
        self._is_complete = False

    async def send(self, message: Message) -> None:
        """Pass on a message of the application."""
        if self._is_complete:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._held_start is not None:
            await self._send_malformed(self._held_start, message)
        elif self._splitter is not None:
            await self._send_edited(self._splitter, message)
        else:
            await self._send_body(message.get("body", b""), message.get("more_body", False))

    async def close(self) -> None:
        """End a response that the application has not completed."""
        if self._is_complete or not self._exchange.is_dropped:
            return
        plan = self._exchange.plan
        if plan is not None and plan.ends_cleanly:
            await self._send_body(b"", more_body=False)
        else:
            self._drop()

    async def _start(self, message: Message) -> None:
        request = self._exchange.request
        headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        kind = headers.get("content-type", "").partition(";")[0]
        request.status = message["status"]
        request.is_stream = kind in _STREAM_TYPES
        request.answered_at = self._traffic.now()
        if "retry-after" in headers:
            request.retry_after = float(headers["retry-after"])
        if self._exchange.is_dropped:
            self._drop()
            return
        if message["status"] >= 400:
            request.ending = Ending.REJECTED
        plan = self._exchange.plan
        if plan is not None and plan.edits and message["status"] == 200:
            if request.is_stream:
                self._splitter = FrameSplitter(is_sse=_STREAM_TYPES[kind])
                self._edits = build_edits(plan.edits)
            elif plan.is_malformed:
                self._held_start = message
                return
        await self._send(message)

    async def _send_malformed(self, start: Message, message: Message) -> None:
        """Send a whole response with a malformed body."""
        assert self._exchange.plan is not None
        self._held_start = None
        body = message.get("body", b"")
        for edit in self._exchange.plan.edits:
            if edit.startswith(MALFORMED_PREFIX):
                body = SPOILERS[edit.removeprefix(MALFORMED_PREFIX)](body)
        headers = [
            (name, b"%d" % len(body) if name.lower() == b"content-length" else value)
            for name, value in start["headers"]
        ]
        await self._send({**start, "headers": headers})
        await self._send_body(body, more_body=False)

    async def _send_edited(self, splitter: FrameSplitter, message: Message) -> None:
        for frame in splitter.feed(message.get("body", b"")):
            await self._send_frame(frame)
            # Lets the event loop notice that the client has disconnected.
            await asyncio.sleep(0)
        if not message.get("more_body", False):
            await self._send_body(splitter.close(), more_body=False)

    async def _send_frame(self, frame: Frame) -> None:
        for piece in edit_frame(frame, self._edits):
            if isinstance(piece, Pause):
                await asyncio.sleep(piece.seconds)
            else:
                await self._send_body(piece, more_body=True)

    async def _send_body(self, body: bytes, more_body: bool) -> None:
        if not more_body:
            self._is_complete = True
            if self._exchange.request.ending is Ending.RUNNING:
                self._exchange.request.ending = Ending.COMPLETE
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})

    def _drop(self) -> None:
        self._is_complete = True
        self._connection.fail()
