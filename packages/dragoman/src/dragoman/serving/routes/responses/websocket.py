"""The WebSocket mode of /v1/responses: one response after another on a connection.

The connection remembers its last response, even if it is not stored, so that the next
one can continue it. A failed continuation forgets it. Admission, turns and events are
the same as over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from ....core.errors import AuthenticationError, DragomanError, Overloaded, RequestError
from ....core.events import ChoiceFinished, Event, FinishReason
from ....core.fair_shares import compute_allowance
from ....dialects.responses.errors import RESPONSES_ERRORS
from ....dialects.responses.websocket_frames import (
    ClientFrame,
    read_frame,
    render_error_frame,
    split_frames,
)
from ....pipeline.driver import Stage
from ...access_policy import AccessPolicy
from ...auth import Access
from ...call_admission import AdmittedCall
from ...call_reading import build_reader_options, run_in_thread_if_large
from ...client_warnings import join_warnings
from ...disconnect import ignore_disconnect
from ...endpoint import format_address
from ...generation_handler import find_header_timeout
from ...generation_responder import GenerationResponder, RenderedWarnings
from ...http_request import HttpRequest, build_http_request
from ...request_limits import run_within_limits
from ...responder import RawHeaders, wrap_unexpected_error
from ...route import RequestCost
from ...service import Service, restrict_service
from .conversation_locks import ConversationLocks
from .history import ResponseHistory
from .turn import ResponseTurn, open_turn

log = logging.getLogger("dragoman.access")

MAX_QUEUED_FRAMES = 8
"""Maximum number of queued frames; their total size is limited to that of one body."""
LIFETIME_ERROR_CODE = "websocket_connection_limit_reached"
FINISH_MESSAGE = "dragoman.finish"
"""The type of a message with which a stopping server ends a connection, after the
current response if there is one.
"""
PENDING = "dragoman.pending"
"""A scope extension that registers a callback. The server calls it with the size of an
incomplete message, in bytes, whenever that changes. The callback returns whether the
memory budget allows it; if not, the server closes the connection.
"""
RESTART_CLOSE_CODE = 1012
"""Close code "service restart" (IANA registry of RFC 6455); clients reconnect."""


class ResponsesWebSocket:
    """The WebSocket endpoint: checks, authentication, and the limit on connections."""

    path = "/v1/responses"
    access = Access.USER
    envelope = RESPONSES_ERRORS

    def __init__(
        self, service: Service, policy: AccessPolicy, conversation_locks: ConversationLocks
    ) -> None:
        self._service = service
        self._policy = policy
        self._conversation_locks = conversation_locks
        self._open_counts: Counter[str] = Counter()
        """Open connections of each owner."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = build_http_request(scope, receive, ignore_disconnect, self._service, self.envelope)
        # ASGI: `websocket.connect` must be received before the handshake is accepted or
        #     rejected.
        await receive()
        try:
            self._policy.check_headers(http.headers)
            self._policy.check_origin(http.headers, self.access)
            caller = self._policy.keyring.authenticate(http.headers, self.access)
            self._check_limit(caller.owner)
            http.record.owner = caller.owner
            http.body_memory.owner = caller.owner
            http = replace(http, caller=caller)
        except DragomanError as error:
            await reject_handshake(scope, send, *http.render_error(error))
            return
        # No await since the check of the limit, so concurrent handshakes cannot exceed
        # it.
        self._open_counts[caller.owner] += 1
        try:
            await send(
                {"type": "websocket.accept", "headers": [(b"x-request-id", http.id.encode())]}
            )
            connection = WebSocketSession(http, self._conversation_locks, receive, send)
            extensions: Mapping[str, Callable[[Callable[[int], bool]], None]] = (
                scope.get("extensions") or {}
            )
            if (watch_pending := extensions.get(PENDING)) is not None:
                watch_pending(connection.note_pending)
            await connection()
        finally:
            self._open_counts[caller.owner] -= 1

    def _check_limit(self, owner: str) -> None:
        """Raise Overloaded if the limit or the owner's share of it is reached."""
        counts = self._open_counts
        owners = self._policy.keyring.owners
        allowance = compute_allowance(self._service.options.max_sockets, owner, owners, counts)
        if counts[owner] >= allowance:
            raise Overloaded("There are too many WebSockets; retry later, or use HTTP.")


async def reject_handshake(
    scope: Scope, send: Send, status: int, headers: RawHeaders, body: bytes
) -> None:
    """Reject a handshake with an HTTP response, if the server supports that extension."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        # Before the handshake is accepted, ASGI servers turn a close into a 403.
        await send({"type": "websocket.close", "code": 1008})
        return
    length = (b"content-length", str(len(body)).encode())
    await send(
        {"type": "websocket.http.response.start", "status": status, "headers": [*headers, length]}
    )
    await send({"type": "websocket.http.response.body", "body": body})


class WebSocketSession:
    """One client's connection.

    http: the handshake request.
    """

    def __init__(
        self, http: HttpRequest, conversation_locks: ConversationLocks, receive: Receive, send: Send
    ) -> None:
        self._http = http
        self._conversation_locks = conversation_locks
        self._receive = receive
        self._send = send
        self._service = http.service
        self._incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_disconnected = False
        self._disconnect_callback: Callable[[], object] | None = None
        self._is_finishing = False
        self._queued_bytes = self._pending = 0
        self._history: ResponseHistory | None = None

    async def __call__(self) -> None:
        """Handle frames until the client disconnects, a limit or the connection's
        lifetime is exceeded, or the server stops.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._http.service.options.socket_lifetime
        # Receives during responses too, to notice a disconnect.
        receiver = loop.create_task(self._receive_frames())
        try:
            while not self._is_finishing and (data := await self._next_frame(deadline)) is not None:
                await self._handle_frame(data)
            if self._is_finishing:
                await self._send_message({"type": "websocket.close", "code": RESTART_CLOSE_CODE})
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)
            self._http.body_memory.release()

    def note_pending(self, size: int) -> bool:
        """Account for an incomplete message in the body memory budget; return whether
        there is room.
        """
        if self._is_disconnected:
            return False
        try:
            # The share covers all bytes of the connection: the queued messages and the
            # incomplete one.
            self._http.body_memory.reserve(self._queued_bytes + size)
        except Overloaded:
            return False
        self._pending = size
        return True

    async def _receive_frames(self) -> None:
        try:
            while (message := await self._receive())["type"] != "websocket.disconnect":
                if message["type"] == FINISH_MESSAGE:
                    # The current response may finish.
                    self._is_finishing = True
                    # Wakes the loop in `__call__`, which may be waiting for the client.
                    self._incoming.put_nowait(None)
                    continue
                # Text and binary frames are both accepted as JSON.
                data = message.get("bytes") or (message.get("text") or "").encode()
                self._queued_bytes += len(data)
                # A single frame may exceed the limit: `_handle_frame` rejects it, and
                # the connection stays open.
                max_bytes = self._http.service.options.max_body_bytes
                if self._incoming.qsize() >= MAX_QUEUED_FRAMES or (
                    self._queued_bytes > max_bytes and not self._incoming.empty()
                ):
                    await self._send_message(
                        {"type": "websocket.close", "code": 1008, "reason": "too many frames"}
                    )
                    return
                self._http.body_memory.reserve(self._queued_bytes + self._pending)
                self._incoming.put_nowait(data)
        except Overloaded:
            await self._send_message(
                {"type": "websocket.close", "code": 1013, "reason": "too much of all connections"}
            )
        finally:
            self._mark_disconnected()

    async def _next_frame(self, deadline: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(deadline):
                data = await self._incoming.get()
            self._queued_bytes -= len(data or b"")
            self._http.body_memory.reserve(self._queued_bytes + self._pending)
            return data
        except TimeoutError:
            error = RequestError(
                "Responses websocket connection limit reached (60 minutes). Create a new "
                "websocket connection to "
                "continue.",
                code=LIFETIME_ERROR_CODE,
            )
            with suppress(TimeoutError):
                # A client that does not read must not keep the connection open beyond
                # its lifetime.
                async with asyncio.timeout(self._http.service.options.timeouts.stall):
                    await self._send_error(error)
                    await self._send_message({"type": "websocket.close", "code": 1000})
            self._mark_disconnected()
            return None

    async def _handle_frame(self, data: bytes) -> None:
        started_at = self._http.service.clock.monotonic()
        previous: str | None = None
        turn: ResponseTurn | None = None
        status = 200
        # The models that the key permits may have changed since the last frame.
        service = restrict_service(self._service, self._http.caller)
        self._http = replace(self._http, service=service)
        try:
            options = build_reader_options(self._http)
            self._http.record.call = None

            async def open_turn(_: HttpRequest) -> ResponseTurn | None:
                nonlocal previous
                if len(data) > service.options.max_body_bytes:
                    raise RequestError(
                        f"The frame is larger than the limit of {service.options.max_body_bytes} "
                        "bytes."
                    )
                client_frame = await run_in_thread_if_large(
                    lambda frame: read_frame(frame, options, now=lambda: int(service.clock.now())),
                    data,
                )
                if client_frame is None:
                    return None
                previous = client_frame.call.previous_response_id
                return await self._open_turn(client_frame)

            turn = await run_within_limits(open_turn, self._http, RequestCost.CALL)
            if turn is None:
                return
            http = self._http
            response_start = http.build_response_start(
                [], find_header_timeout(http.service, turn.admitted)
            )
            sender = _FrameSender(self._send_frame, turn.admitted)
            responder = GenerationResponder(
                turn.batches,
                turn.writer,
                response_start,
                http.service.stream_monitor,
                stream=True,
                render_warnings=sender.add_warnings,
            )
            outcome = await responder(self._on_disconnect, sender)
            status = outcome.status
            if outcome.cancelled:
                # The client has disconnected or has stopped reading.
                self._mark_disconnected()
        except DragomanError as error:
            status = await self._send_error(error)
            await self._close_if_revoked()
        except Exception as error:
            status = await self._send_error(wrap_unexpected_error(error))
        next_history = None if turn is None else turn.next_history
        if next_history is not None:
            self._history = next_history
        # As OpenAI's server: after a failed continuation the response is forgotten, and
        # clients send everything again.
        elif self._history is not None and self._history.id == previous:
            self._history = None
        if self._http.service.options.access_log:
            elapsed = (self._http.service.clock.monotonic() - started_at) * 1000
            client = format_address(self._http.client)
            log.info(
                "%s %s WEBSOCKET /v1/responses %d %.1fms", client, self._http.id, status, elapsed
            )

    async def _close_if_revoked(self) -> None:
        """Close the connection if its key was revoked: it would only hold resources."""
        try:
            self._service.tenancy.keyring.find_tenant(self._http.caller.owner)
        except AuthenticationError:
            await self._send_message(
                {"type": "websocket.close", "code": 1008, "reason": "the API key was revoked"}
            )
            self._mark_disconnected()

    async def _open_turn(self, client_frame: ClientFrame) -> ResponseTurn:
        previous = client_frame.call.previous_response_id
        is_known = self._history is not None and self._history.id == previous
        # Not `Unsupported` as over HTTP, because clients react to this code by sending
        # the whole conversation.
        if previous is not None and not is_known and self._http.service.store is None:
            raise RequestError(
                f"Previous response with id '{previous[:100]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        turn = await open_turn(
            self._http,
            client_frame.call,
            self._conversation_locks,
            local_history=self._history,
        )
        # `generate: false` only fills the prefix cache for the next turn, as OpenAI's
        # WebSocket mode describes it.
        if not client_frame.generate:
            turn.batches.add_stage(_StopReport())
        turn.store_at_end(keeps_history=True)
        return turn

    def _on_disconnect(self, callback: Callable[[], object] | None, /) -> None:
        """Register a callback for the client's disconnect. Implements `OnDisconnect`."""
        self._disconnect_callback = callback
        if self._is_disconnected and callback is not None:
            asyncio.get_running_loop().call_soon(self._notify_disconnect)

    def _notify_disconnect(self) -> None:
        callback = self._disconnect_callback
        self._disconnect_callback = None
        if callback is not None:
            callback()

    async def _send_error(self, error: DragomanError) -> int:
        status, headers, body = self._http.render_error(error)
        await self._send_frame(render_error_frame(status, body, _find_retry_after(headers)))
        return status

    async def _send_frame(self, frame: bytes) -> None:
        await self._send_message({"type": "websocket.send", "text": frame.decode()})

    async def _send_message(self, message: Message) -> None:
        if self._is_disconnected:
            return
        try:
            await self._send(message)
        except OSError:
            # ASGI servers raise OSError after a disconnect.
            self._mark_disconnected()

    def _mark_disconnected(self) -> None:
        self._is_disconnected = True
        self._incoming.put_nowait(None)
        asyncio.get_running_loop().call_soon(self._notify_disconnect)


class _FrameSender:
    """Translates a responder's ASGI messages to WebSocket frames. The first event
    carries the call's warnings.
    """

    def __init__(
        self, send_frame: Callable[[bytes], Awaitable[None]], admitted: AdmittedCall
    ) -> None:
        self._send_frame = send_frame
        self._admitted = admitted
        self._warnings = admitted.warnings
        self._status = 200
        self._headers = RawHeaders()

    def add_warnings(
        self, later: tuple[str, ...], _headers: RawHeaders | None, /
    ) -> RenderedWarnings:
        """Add the engine's warnings to the next event. Implements `WarningRenderer`."""
        self._warnings = join_warnings(self._admitted.warnings, self._admitted.field_names, later)
        return RenderedWarnings(RawHeaders(), b"")

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = message["headers"]
        elif self._status != 200:
            await self._send_frame(
                render_error_frame(self._status, message["body"], _find_retry_after(self._headers))
            )
        else:
            for frame in split_frames(message["body"], self._warnings):
                self._warnings = ()
                await self._send_frame(frame)


class _StopReport(Stage):
    """Reports `stop` instead of a length limit: with `generate: false` the empty output
    is not truncated.
    """

    __slots__ = ()

    def feed(self, batch: list[Event]) -> list[Event]:
        return [
            replace(event, reason=FinishReason.STOP) if isinstance(event, ChoiceFinished) else event
            for event in batch
        ]


def _find_retry_after(headers: RawHeaders) -> str | None:
    return next((value.decode() for name, value in headers if name == b"retry-after"), None)
