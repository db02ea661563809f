"""A WebSocket on /v1/responses: answers as over HTTP, in frames, one after the other on one connection.

The connection remembers its last response, also one that is not stored, so that the next one can go on from it; one
that fails to go on from it is the end of that memory. Everything else is as over HTTP: the same admission, the same
turns, the same answers, told by the same events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace

import anyio.to_thread
import msgspec
from starlette.types import Message, Receive, Scope, Send

from ...core.errors import DragomanError, Overloaded, RequestError
from ...core.events import ChoiceFinished, Event, FinishReason
from ...dialects.responses.frame import Wish, error_frame, frames, read_frame
from ..answer import Batches, GeneratedAnswer, RawHeaders, unexpected
from ..auth import Access
from ..endpoint import EnvelopeOf, Http, http_of, show_address
from ..generate import LARGE_BODY, patience_for, reading
from ..host import check_headers
from ..leaving import nobody
from ..service import Service
from .past import Past
from .turn import Turn, open_turn

log = logging.getLogger("dragoman.access")

WAITING = 8
"""Frames that may wait for those before them; together they may be as large as one body."""
LIMIT = "websocket_connection_limit_reached"
FINISH = "dragoman.finish"
"""The type of a message by which a server that stops asks a connection to end: at once, or when its answer does."""
PENDING = "dragoman.pending"
"""An extension of the scope: takes a function which the server calls with the bytes that have come of a message that is
not whole, whenever their number changes. It returns whether there is room for them; if not the server closes."""
RESTART = 1012
"""Why it ends then. Clients connect again after that."""


class ResponsesSocket:
    """The door: who may connect, and how many."""

    access = Access.USER

    def __init__(self, service: Service, envelope: EnvelopeOf) -> None:
        self._service, self._envelope = service, envelope
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = http_of(scope, receive, nobody, self._service, self._envelope)
        await receive()
        try:
            http = self._admitted(http)
        except DragomanError as error:
            await refuse(scope, send, *http.refusal(error))
            return
        self._open += 1
        try:
            await send({"type": "websocket.accept", "headers": [(b"x-request-id", http.id.encode())]})
            connection = Connection(http, receive, send)
            extensions: Mapping[str, Callable[[Callable[[int], bool]], None]] = scope.get("extensions") or {}
            if (watch_pending := extensions.get(PENDING)) is not None:
                watch_pending(connection.note_pending)
            await connection()
        finally:
            self._open -= 1

    def _admitted(self, http: Http) -> Http:
        check_headers(http.headers, self._service.allowed_hosts)
        self._service.options.origins.check(http.headers, named=False)
        caller = self._service.keyring.admit(http.headers, self.access)
        if self._open >= self._service.options.max_sockets:
            raise Overloaded("There are too many WebSockets; retry later, or use HTTP.")
        return replace(http, caller=caller)


async def refuse(scope: Scope, send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """An answer over HTTP instead of a connection, where the server can give one."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "websocket.http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "websocket.http.response.body", "body": body})


class Connection:
    """One client's connection. http: how it began."""

    def __init__(self, http: Http, receive: Receive, send: Send) -> None:
        self._http, self._receive, self._send = http, receive, send
        self._heard: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = False
        self._watching: Callable[[], object] | None = None
        self._is_last = False
        self._waiting = self._pending = 0
        self._memory: Past | None = None

    async def __call__(self) -> None:
        """Until the client leaves, talks too much at once, or has been connected for too long, or the server stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._http.service.options.socket_lifetime
        hearing = loop.create_task(self._hear())
        try:
            while not self._is_last and (data := await self._next(until)) is not None:
                await self._answer(data)
            if self._is_last:
                await self._say({"type": "websocket.close", "code": RESTART})
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            self._http.share.give_back()

    def note_pending(self, size: int) -> bool:
        """Bytes of a message that has begun to come: they count as those of a body do. False if there is no room."""
        if self._gone:
            return False
        try:
            self._http.share.take(self._waiting + size)
        except Overloaded:
            return False
        self._pending = size
        return True

    async def _hear(self) -> None:
        try:
            while (message := await self._receive())["type"] != "websocket.disconnect":
                if message["type"] == FINISH:
                    self._is_last = True
                    self._heard.put_nowait(None)
                    continue
                data = message.get("bytes") or (message.get("text") or "").encode()
                self._waiting += len(data)
                most = self._http.service.options.max_body_bytes
                if self._heard.qsize() >= WAITING or (self._waiting > most and not self._heard.empty()):
                    await self._say({"type": "websocket.close", "code": 1008, "reason": "too much at once"})
                    return
                self._http.share.take(self._waiting + self._pending)
                self._heard.put_nowait(data)
        except Overloaded:
            await self._say({"type": "websocket.close", "code": 1013, "reason": "too much of all connections"})
        finally:
            self._leave()

    async def _next(self, until: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(until):
                data = await self._heard.get()
            self._waiting -= len(data or b"")
            self._http.share.take(self._waiting + self._pending)
            return data
        except TimeoutError:
            error = RequestError(
                "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to "
                "continue.",
                code=LIMIT,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(self._http.service.options.patience.stall):
                    await self._tell_error(error)
                    await self._say({"type": "websocket.close", "code": 1000})
            self._leave()
            return None

    async def _answer(self, data: bytes) -> None:
        began = self._http.service.clock.monotonic()
        previous: str | None = None
        turn: Turn | None = None
        status = 200
        try:
            wish = await self._read(data)
            if wish is None:
                return
            previous = wish.asked.previous_response_id
            turn = await self._turn(wish)
            outcome = await self._answer_of(turn)(self._watch, _Frames(self._tell, turn.admitted.warnings))
            status = outcome.status
            if outcome.cancelled:
                # The client has left, or reads no more.
                self._leave()
        except DragomanError as error:
            status = await self._tell_error(error)
        except Exception as error:
            status = await self._tell_error(unexpected(error))
        self._remember(turn, previous)
        if self._http.service.options.access_log:
            elapsed = (self._http.service.clock.monotonic() - began) * 1000
            client = show_address(self._http.client)
            log.info("%s %s WEBSOCKET /v1/responses %d %.1fms", client, self._http.id, status, elapsed)

    async def _read(self, data: bytes) -> Wish | None:
        service = self._http.service
        if len(data) > service.options.max_body_bytes:
            raise RequestError(f"The frame is larger than the limit of {service.options.max_body_bytes} bytes.")
        options = reading(self._http)

        def read() -> Wish | None:
            return read_frame(data, options, now=lambda: int(service.clock.now()))

        return await anyio.to_thread.run_sync(read) if len(data) > LARGE_BODY else read()

    async def _turn(self, wish: Wish) -> Turn:
        previous = wish.asked.previous_response_id
        known = self._memory is not None and self._memory.id == previous
        if previous is not None and not known and self._http.service.store is None:
            raise RequestError(
                f"Previous response with id '{previous[:100]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        turn = await open_turn(self._http, wish.asked, local=self._memory)
        if not wish.generate:
            run = replace(turn.admitted.run, batches=_prepared(turn.admitted.run.batches))
            turn.admitted = replace(turn.admitted, run=run)
        return turn

    def _answer_of(self, turn: Turn) -> GeneratedAnswer:
        http = self._http
        opening = http.opening([], patience_for(http.service, turn.admitted))
        return GeneratedAnswer(turn.batches, turn.writer, opening, http.service.lookout, stream=True)

    def _remember(self, turn: Turn | None, previous: str | None) -> None:
        said = None if turn is None else turn.memory
        if said is not None:
            self._memory = said
        elif self._memory is not None and self._memory.id == previous:
            self._memory = None

    def _watch(self, callback: Callable[[], object] | None, /) -> None:
        """As `http.leaving.Watch`."""
        self._watching = callback
        if self._gone and callback is not None:
            asyncio.get_running_loop().call_soon(self._tell_of_leaving)

    def _tell_of_leaving(self) -> None:
        callback, self._watching = self._watching, None
        if callback is not None:
            callback()

    async def _tell_error(self, error: DragomanError) -> int:
        status, headers, body = self._http.refusal(error)
        await self._tell(error_frame(status, body, _retry_after(headers)))
        return status

    async def _tell(self, frame: bytes) -> None:
        await self._say({"type": "websocket.send", "text": frame.decode()})

    async def _say(self, message: Message) -> None:
        if self._gone:
            return
        try:
            await self._send(message)
        except OSError:
            # What ASGI servers raise once the client has left.
            self._leave()

    def _leave(self) -> None:
        self._gone = True
        self._heard.put_nowait(None)
        asyncio.get_running_loop().call_soon(self._tell_of_leaving)


class _Frames:
    """Where an answer sends what it would send over HTTP. warnings: told with its first event."""

    def __init__(self, tell: Callable[[bytes], Awaitable[None]], warnings: tuple[str, ...]) -> None:
        self._tell, self._warnings = tell, warnings
        self._status, self._headers = 200, RawHeaders()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message["headers"]
        elif self._status != 200:
            await self._tell(error_frame(self._status, message["body"], _retry_after(self._headers)))
        else:
            for frame in frames(message["body"], self._warnings):
                self._warnings = ()
                await self._tell(frame)


async def _prepared(batches: Batches) -> AsyncGenerator[list[Event]]:
    """An answer that was to say nothing has not been cut off."""
    async with aclosing(batches):
        async for batch in batches:
            yield [
                msgspec.structs.replace(event, reason=FinishReason.STOP) if isinstance(event, ChoiceFinished) else event
                for event in batch
            ]


def _retry_after(headers: RawHeaders) -> str | None:
    return next((value.decode() for name, value in headers if name == b"retry-after"), None)
