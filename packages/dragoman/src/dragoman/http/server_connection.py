"""A client's connection, which splits the bytes that it receives into requests.

    head ---> body ---> (responded) ---> head ...
      |         |            |
      +---------+------------+--> closed: rejected, timed out,
                                     no keepalive, disconnected

While a response is written the connection holds no parser, no headers and no timer.
Bytes of a pipelined request are buffered up to a limit; then reading pauses, and the
socket is polled for a disconnect.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from uvicorn.config import Config
from uvicorn.server import ServerState

from .bad_request import BadRequest
from .body_readers import BodyReader
from .exchange import HttpExchange
from .limits import HttpLimits
from .request_head import HEAD_END, check_partial_head, parse_head
from .response_head import build_plain_response
from .server_context import ServerContext, log
from .sockets import Address, count_unread_bytes, has_disconnected, read_addresses, reset_transport
from .tls_handshake import TlsHandshake
from .wakeup import Wakeup
from .websocket_handshake import check_websocket

T = TypeVar("T")


class Deadlines(Generic[T]):
    """A queue of deadlines with the same duration.

    seconds: time from `start` to the deadline.
    on_timeout: called with each item whose deadline has passed, unless `cancel` came
        first.

    Equal durations expire in the order of their start, so one timer, for the first
    item, is enough.
    """

    __slots__ = ("_due_times", "_loop", "_on_timeout", "_seconds", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, on_timeout: Callable[[T], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._on_timeout = on_timeout
        self._due_times: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, item: T) -> None:
        """Start or restart the item's deadline."""
        # Removed first: a dict keeps the position of a key that is assigned again, and
        # the order must be that of the starts.
        self._due_times.pop(item, None)
        self._due_times[item] = self._loop.time() + self._seconds
        if self._timer is None:
            self._schedule()

    def cancel(self, item: T) -> None:
        """Cancel the item's deadline, if any."""
        # The timer is left running: one superfluous call is cheaper than rescheduling
        # it for every request.
        self._due_times.pop(item, None)

    def _schedule(self) -> None:
        first = next(iter(self._due_times.values()), None)
        self._timer = None if first is None else self._loop.call_at(first, self._catch_up)

    def _catch_up(self) -> None:
        """Expire after the event loop has read from its sockets: if it was busy, what a
        client sent in time may still be there. The first call may run before that, the
        second runs after it.
        """
        self._loop.call_soon(self._loop.call_soon, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        expired: list[T] = []
        for item, due in self._due_times.items():
            if due > now:
                break
            expired.append(item)
        for item in expired:
            # A callback may cancel another item's deadline.
            if self._due_times.pop(item, None) is not None:
                self._on_timeout(item)
        self._schedule()


class HttpConnection(asyncio.Protocol):
    """The protocol that uvicorn's server creates for every client."""

    __slots__ = (
        "_address",
        "_body",
        "_body_until",
        "_buffer",
        "_context",
        "_deadline",
        "_exchange",
        "_is_closing",
        "_is_reading",
        "_on_connected",
        "_received_bytes",
        "_timeouts",
        "_unsent_bytes",
        "client",
        "is_secure",
        "is_write_paused",
        "server",
        "transport",
        "writable",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(
        self,
        context: ServerContext,
        timeouts: ConnectionTimeouts,
        on_connected: Callable[[], None] | None = None,
    ) -> None:
        """on_connected: called before the connection counts."""
        self._context = context
        self._timeouts = timeouts
        self._on_connected = on_connected
        self._exchange: HttpExchange | None = None
        self._body: BodyReader | None = None
        self._buffer = b""
        self._deadline: Deadlines[HttpConnection] | None = None
        self._unsent_bytes = self._received_bytes = 0
        self._body_until = 0.0
        self._address: str | None = None
        self._is_reading = True
        self._is_closing = False
        self.is_write_paused = self.is_secure = False
        self.client: Address | None = None
        self.server: Address | None = None
        self.writable = Wakeup()

    # Callbacks of asyncio and uvicorn.

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.transport = transport
        if self._on_connected is not None:
            self._on_connected()
            self._on_connected = None
        self.client, server = read_addresses(transport)
        # One object for all connections of a listener: otherwise each of many idle
        # connections would hold a tuple.
        self.server = self._context.intern_address(server)
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        # Before `admit`, whose limit counts this connection too.
        self._context.connections.add(self)
        self._address = None if self.client is None else self.client[0]
        self._set_deadline(self._timeouts.head)
        if not self._context.admit(self, self._address):
            # Reject a connection above the limit: with a 503, or with a reset when the
            # server is flooded. A reset costs no write and no lingering connection, the
            # resources that a flood exhausts.
            if self._context.is_flooded:
                self.abort(hard=True)
            else:
                self._reject(
                    BadRequest(
                        503,
                        "The server has too many connections; try again later.",
                        b"retry-after: 1\r\n",
                    )
                )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        self._context.connections.discard(self)
        self._context.release(self, self._address)
        self._set_deadline(None)
        self._timeouts.drain.cancel(self)
        self._is_closing = True
        self._disconnect_exchange()

    def eof_received(self) -> None:
        """Treat a half-closed connection as a disconnect, and close the transport."""
        self._close()

    def data_received(self, data: bytes) -> None:
        # While the connection lingers, the client's remaining input is read and
        # dropped.
        if self._is_closing:
            return
        if self._body is not None:
            self._feed_body(self._body, data)
        elif self._exchange is None:
            self._feed_head(data)
        else:
            self._buffer_pipelined(data)

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self._exchange is not None:
            self._exchange.set_write_paused(True)
        self._start_drain_deadline()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._exchange is not None:
            self._exchange.set_write_paused(False)
        self._timeouts.drain.cancel(self)
        self.writable.notify_all()

    def shutdown(self) -> None:
        """Graceful shutdown: finish the current response and accept no further request."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keeps_alive = False

    # Callbacks of the exchange.

    def resume_body(self) -> None:
        self._resume_reading()
        # A deadline that is running stays: reads of the application must not extend the
        # time that the client has.
        if self._deadline is not self._timeouts.body:
            self._begin_waiting_for_body()

    def on_response_complete(self, *, keeps_alive: bool) -> None:
        self._exchange = None
        # uvicorn's counter, by which its server enforces `limit_max_requests`.
        self._context.state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._body is None:
            self._start_next_request() if keeps_alive else self._close()
        elif keeps_alive:
            # The rest of this body is read and discarded, since the next request
            # follows it.
            self._resume_reading()
            self._set_deadline(self._timeouts.linger)
        else:
            self._linger()

    def abort(self, *, hard: bool) -> None:
        if hard:
            self._is_closing = True
            self._set_deadline(None)
            self._disconnect_exchange()
            reset_transport(self.transport)
        else:
            self._close()

    # Parsing.

    def _feed_head(self, data: bytes) -> None:
        """Parse the next bytes of a head, and pass on those that follow it.

        Empty lines before the request line are skipped (RFC 9112, 2.2).
        """
        checked_bytes = len(self._buffer)
        data = self._buffer + data if checked_bytes else data.lstrip(b"\r\n")
        is_websocket = False
        try:
            end = self._find_head_end(data, checked_bytes)
            head = parse_head(data[:end]) if end else None
            if head is not None and head.upgrade == b"websocket" and self._context.has_websocket:
                is_websocket = True
                check_websocket(head)
        except BadRequest as error:
            self._reject(error)
            return
        if head is None:
            self._buffer = data
            if data and self._deadline is not self._timeouts.head:
                self._set_deadline(self._timeouts.head)
            return
        self._buffer = b""
        remaining_data = data[end:]
        if self._deadline is not None:
            self._set_deadline(None)
        if is_websocket:
            # Hand over to uvicorn's WebSocket protocol, from the request's first byte.
            # It requires lower-case header names. It adds itself to the same set: the
            # connection must not be counted twice.
            self._context.connections.discard(self)
            protocol = self._context.build_websocket(self._address)
            protocol.connection_made(self.transport)
            protocol.data_received(head.encode() + remaining_data)
            self.transport.set_protocol(protocol)
            return
        self._body = body = head.body
        self._exchange = exchange = HttpExchange(self, self._context, head)
        # Before the remaining input is read, so that the application can respond
        # without waiting for a body.
        exchange.start(self, head)
        if body is None:
            if remaining_data:
                self._buffer_pipelined(remaining_data)
            return
        if remaining_data:
            self._feed_body(body, remaining_data)
        # A client that awaits `100 Continue` sends nothing before the application
        # reads: its deadline starts then.
        elif not exchange.is_awaiting_continue:
            self._begin_waiting_for_body()
        if self._body is not None:
            self._body_until = self._context.loop.time() + self._context.limits.body_total

    def _find_head_end(self, data: bytes, checked_bytes: int) -> int:
        """Return the length of the head, or 0 while it is incomplete.

        checked_bytes: bytes that an earlier call has checked.

        Raises:
            BadRequest: the head is too large or malformed.
        """
        # The search starts where an end could begin in the earlier bytes: a head that
        # arrives byte by byte must not cost quadratic time.
        end = data.find(HEAD_END, max(0, checked_bytes - len(HEAD_END) + 1)) + len(HEAD_END)
        # If `find` returns -1, `end` is less than the length of the searched bytes.
        is_complete = end >= len(HEAD_END)
        limit = self._context.limits.max_head_bytes
        if (end if is_complete else len(data)) > limit:
            # RFC 9110, 15.5.15 and RFC 6585, 5: the status says which part is too long.
            status, subject = (
                (431, "headers are") if b"\r\n" in data[:limit] else (414, "first line is")
            )
            raise BadRequest(
                status, f"The request's {subject} larger than the {limit} bytes that are allowed."
            )
        if not is_complete:
            check_partial_head(data, checked_bytes)
        return end if is_complete else 0

    def _feed_body(self, body: BodyReader, data: bytes) -> None:
        exchange = self._exchange
        try:
            chunk, pipelined_data = body.feed(data)
        except BadRequest as error:
            # If the response is already complete, the error can no longer be reported.
            self._reject(error) if exchange is not None else self._close()
            return
        if pipelined_data is not None:
            self._body = None
        if exchange is None:
            if pipelined_data is not None:
                self._buffer = pipelined_data
                self._start_next_request()
            return
        exchange.feed(chunk, is_complete=pipelined_data is not None)
        if pipelined_data is not None:
            if self._deadline is not None:
                self._set_deadline(None)
            if pipelined_data:
                self._buffer_pipelined(pipelined_data)
            return
        limits = self._context.limits
        if exchange.unread_bytes > limits.max_buffered_bytes:
            # Backpressure: with reading paused the TCP window fills, and the client
            #     stops sending.
            self._pause_reading()
            return
        # A body that meets the minimum rate gets a new deadline.
        self._received_bytes += len(data)
        if self._deadline is not self._timeouts.body:
            self._begin_waiting_for_body()
        elif self._received_bytes >= limits.body_rate * limits.body:
            # A client that just meets the minimum rate could still take hours:
            # `body_total` bounds the whole body.
            if self._context.loop.time() > self._body_until:
                self.on_body_timeout()
            else:
                self._begin_waiting_for_body()

    def _begin_waiting_for_body(self) -> None:
        self._received_bytes = 0
        self._set_deadline(self._timeouts.body)

    def _buffer_pipelined(self, data: bytes) -> None:
        """Buffer bytes of the next request until this response is complete."""
        self._buffer += data
        if len(self._buffer) > self._context.limits.max_buffered_bytes:
            self._pause_reading()

    def _start_next_request(self) -> None:
        buffered = self._buffer
        self._buffer = b""
        self._resume_reading()
        self._set_deadline(self._timeouts.idle)
        if buffered:
            self._feed_head(buffered)

    # Closing.

    def _reject(self, error: BadRequest) -> None:
        log.warning("Invalid HTTP request received: %s", error.message)
        # A second status line within a response would be read as its body: the
        # connection is aborted instead.
        if self._exchange is not None and self._exchange.has_started:
            self._exchange.fail()
            return
        self._disconnect_exchange()
        self.transport.write(
            build_plain_response(
                error.status, error.message, self._context.header_lines + error.lines
            )
        )
        self._linger()

    def _linger(self) -> None:
        """Half-close, and read what the client still sends before closing (RFC 9112,
        9.6).

        An immediate close could cause a TCP reset, which would discard the response.
        """
        # asyncio's TLS transports cannot be half-closed.
        if not self.transport.can_write_eof():
            self._close()
            return
        self._is_closing = True
        self._body = None
        self._buffer = b""
        self.transport.write_eof()
        self._resume_reading()
        self._set_deadline(self._timeouts.linger)

    def _close(self) -> None:
        self._is_closing = True
        self._body = None
        self._buffer = b""
        self._set_deadline(None)
        self._disconnect_exchange()
        # Closed only once: asyncio's TLS transport drops its protocol at the second
        # close and fails on later calls.
        if not self.transport.is_closing():
            self.transport.close()
            # asyncio closes the socket only when everything is sent, which never
            # happens if the client does not read.
            self._start_drain_deadline()

    def _disconnect_exchange(self) -> None:
        exchange = self._exchange
        self._exchange = None
        if exchange is not None:
            exchange.disconnect()
        self.writable.notify_all()

    # Deadlines.

    def _set_deadline(self, deadline: Deadlines[HttpConnection] | None) -> None:
        """Set the only deadline for input from the client; None: no deadline."""
        if self._deadline is not None:
            self._deadline.cancel(self)
        self._deadline = deadline
        if deadline is not None:
            deadline.start(self)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()
            # While reading is paused, asyncio does not report the end of the stream.
            self._set_deadline(self._timeouts.peek)

    def _resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()
            if self._deadline is self._timeouts.peek:
                self._set_deadline(None)

    def _start_drain_deadline(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._timeouts.drain.start(self)

    def on_head_timeout(self) -> None:
        """Reject the request with 408, or close without a response if no byte of it has
        arrived.
        """
        if self._buffer:
            self._reject(BadRequest(408, "The request's headers took too long."))
        else:
            self._close()

    def on_body_timeout(self) -> None:
        self._reject(BadRequest(408, "The request's body took too long."))

    def peek(self) -> None:
        """Check for a disconnect while reading is paused.

        More than `max_buffered_bytes` unread in the socket may hide the end of the
        stream. No real client pipelines that much, so such a client counts as
        disconnected.
        """
        is_pipelining = self._exchange is not None and self._body is None
        if has_disconnected(self.transport) or (
            is_pipelining
            and count_unread_bytes(self.transport) > self._context.limits.max_buffered_bytes
        ):
            self.abort(hard=True)
        elif not self._is_reading:
            self._set_deadline(self._timeouts.peek)

    def on_drain_timeout(self) -> None:
        """Abort a stalled connection. Any progress since the last check starts a new
        deadline instead.
        """
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._start_drain_deadline()
        else:
            self.abort(hard=True)


class ConnectionTimeouts:
    """The deadlines of all connections of a server, one queue per kind.

    head, body, peek, linger: see `HttpLimits`.
    idle: keepalive time between requests; uvicorn's `timeout_keep_alive`.
    drain: time within which the client must read some of what was written;
        `HttpLimits.stall_timeout`.
    """

    def __init__(self, context: ServerContext) -> None:
        loop = context.loop
        limits = context.limits
        self.head = Deadlines(loop, limits.head_timeout, HttpConnection.on_head_timeout)
        self.body = Deadlines(loop, limits.body, HttpConnection.on_body_timeout)
        self.peek = Deadlines(loop, limits.peek, HttpConnection.peek)
        self.idle = Deadlines(loop, context.config.timeout_keep_alive, HttpConnection.shutdown)
        self.linger = Deadlines(loop, limits.linger_timeout, HttpConnection.shutdown)
        self.drain = Deadlines(loop, limits.stall_timeout, HttpConnection.on_drain_timeout)


class Http11ProtocolFactory:
    """Creates the connections of one server: passed to `uvicorn.Config` as `http` in
    place of a protocol class.

    uvicorn's server owns the sockets, signals, the lifespan and WebSockets.

    tls: the certificate; None for connections that are not encrypted here.
    """

    def __init__(self, limits: HttpLimits | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._limits = limits or HttpLimits()
        self._tls = tls
        self._per_server: tuple[ServerContext, ConnectionTimeouts] | None = None

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> HttpConnection | TlsHandshake:
        # Each server of uvicorn has its own state: one factory may serve several
        # servers, one after the other.
        if self._per_server is None or self._per_server[0].state is not server_state:
            context = ServerContext(config, server_state, app_state, self._limits)
            self._per_server = context, ConnectionTimeouts(context)
        build_connection = partial(HttpConnection, *self._per_server)
        if self._tls is None:
            return build_connection()
        return TlsHandshake(self._per_server[0], self._tls, build_connection)
