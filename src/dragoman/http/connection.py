"""A client's connection: which bytes belong to which request, when to read on, when to give up.

    head ---> body ---> (answered) ---> head ...
      |         |            |
      +---------+------------+--> closed: refused, too slow, told not to be kept, gone

While an answer is written it holds no parser, no headers and no timer. Bytes of a request that comes before the answer
to the one before it are kept as they came, up to a limit; reading pauses there, so that nothing is seen of the client's
leaving until it is read on.
"""

from __future__ import annotations

import asyncio

from .bad_request import BadRequest
from .body import BodyReader
from .context import ServerContext, log
from .deadlines import Deadlines
from .exchange import HttpExchange
from .head import HEAD_END, RequestHead, check_partial_head, parse_head
from .response import build_plain_response
from .sockets import Address, read_addresses, reset_transport
from .wakeup import Wakeup


class HttpConnection(asyncio.Protocol):
    """What uvicorn's server makes for every client."""

    __slots__ = (
        "_body",
        "_buffer",
        "_context",
        "_deadline",
        "_exchange",
        "_is_closing",
        "_is_reading",
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

    def __init__(self, context: ServerContext, timeouts: ConnectionTimeouts) -> None:
        self._context, self._timeouts = context, timeouts
        self._exchange: HttpExchange | None = None
        self._body: BodyReader | None = None
        self._buffer = b""
        self._deadline: Deadlines[HttpConnection] | None = None
        self._unsent_bytes = 0
        self._is_reading = True
        self._is_closing = False
        self.is_write_paused = self.is_secure = False
        self.client: Address | None = None
        self.server: Address | None = None
        self.writable = Wakeup()

    # What asyncio and uvicorn tell.

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.transport = transport
        self.client, server = read_addresses(transport)
        self.server = self._context.intern_address(server)
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._context.connections.add(self)
        self._set_deadline(self._timeouts.head)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        self._context.connections.discard(self)
        self._set_deadline(None)
        self._timeouts.drain.cancel(self)
        self._is_closing = True
        self._disconnect_exchange()

    def eof_received(self) -> None:
        """Whoever has no more to say is gone: the transport closes."""
        self._close()

    def data_received(self, data: bytes) -> None:
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
        self._start_drain_deadline()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self._timeouts.drain.cancel(self)
        self.writable.notify_all()

    def shutdown(self) -> None:
        """The server ends: what is asked is answered, and nothing after it."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keeps_alive = False

    # What the exchange wants.

    def resume_body(self) -> None:
        self._resume_reading()
        self._set_deadline(self._timeouts.body)

    def on_response_complete(self, *, keeps_alive: bool) -> None:
        self._exchange = None
        self._context.state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._body is None:
            self._start_next_request() if keeps_alive else self._close()
        elif keeps_alive:
            # Nobody reads the rest of this body, but the next request is behind it.
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

    # What becomes of bytes.

    def _feed_head(self, data: bytes) -> None:
        """Of bytes that may be the beginning of a head, a head, or more. Empty lines before one are skipped."""
        checked_bytes = len(self._buffer)
        data = self._buffer + data if checked_bytes else data.lstrip(b"\r\n")
        try:
            end = self._find_head_end(data, checked_bytes)
            head = parse_head(data[:end]) if end else None
        except BadRequest as error:
            self._reject(error)
            return
        self._buffer = data[end:]
        if head is None:
            if data and self._deadline is not self._timeouts.head:
                self._set_deadline(self._timeouts.head)
        elif head.upgrade == b"websocket" and self._context.has_websocket:
            self._upgrade_to_websocket(head, data[end:])
        else:
            self._start_exchange(head)

    def _find_head_end(self, data: bytes, checked_bytes: int) -> int:
        """0: it has not come. known: bytes that had been looked at before. Raises Refused."""
        end = data.find(HEAD_END, max(0, checked_bytes - len(HEAD_END) + 1)) + len(HEAD_END)
        is_complete = end >= len(HEAD_END)
        limit = self._context.limits.max_head_bytes
        if (end if is_complete else len(data)) > limit:
            status, subject = (431, "headers are") if b"\r\n" in data[:limit] else (414, "first line is")
            raise BadRequest(status, f"The request's {subject} larger than the {limit} bytes that are allowed.")
        if not is_complete:
            check_partial_head(data, checked_bytes)
        return end if is_complete else 0

    def _start_exchange(self, head: RequestHead) -> None:
        self._set_deadline(None)
        self._body = head.body
        self._exchange = exchange = HttpExchange(self, self._context, head)
        exchange.start(self, head)
        rest, self._buffer = self._buffer, b""
        if rest:
            self.data_received(rest)
        elif head.body is not None and not exchange.is_awaiting_continue:
            self._set_deadline(self._timeouts.body)

    def _feed_body(self, body: BodyReader, data: bytes) -> None:
        exchange = self._exchange
        try:
            chunk, rest = body.feed(data)
        except BadRequest as error:
            self._reject(error) if exchange is not None else self._close()
            return
        if rest is not None:
            self._body = None
        if exchange is not None:
            exchange.feed(chunk, is_complete=rest is not None)
            if rest is not None:
                self._set_deadline(None)
                self._buffer_pipelined(rest)
            elif exchange.unread_bytes > self._context.limits.max_buffered_bytes:
                self._set_deadline(None)
                self._pause_reading()
            else:
                self._set_deadline(self._timeouts.body)
        elif rest is not None:
            self._buffer = rest
            self._start_next_request()

    def _buffer_pipelined(self, data: bytes) -> None:
        """The next request's, until this one is answered."""
        self._buffer += data
        if len(self._buffer) > self._context.limits.max_buffered_bytes:
            self._pause_reading()

    def _start_next_request(self) -> None:
        buffered, self._buffer = self._buffer, b""
        self._resume_reading()
        self._set_deadline(self._timeouts.idle)
        if buffered:
            self._feed_head(buffered)

    def _upgrade_to_websocket(self, head: RequestHead, rest: bytes) -> None:
        """uvicorn's own protocol goes on, from the request's first byte. It wants names of headers in lower case."""
        self._set_deadline(None)
        self._context.connections.discard(self)
        protocol = self._context.build_websocket()
        protocol.connection_made(self.transport)
        protocol.data_received(head.encode() + rest)
        self.transport.set_protocol(protocol)

    # How it ends.

    def _reject(self, error: BadRequest) -> None:
        log.warning("Invalid HTTP request received: %s", error.message)
        if self._exchange is not None and self._exchange.has_started:
            self._exchange.fail()
            return
        self._disconnect_exchange()
        self.transport.write(build_plain_response(error.status, error.message, self._context.header_lines))
        self._linger()

    def _linger(self) -> None:
        """Close, but not over what the client still sends: its system would then drop what it has not read yet."""
        if not self.transport.can_write_eof():
            self._close()
            return
        self._is_closing, self._body, self._buffer = True, None, b""
        self.transport.write_eof()
        self._resume_reading()
        self._set_deadline(self._timeouts.linger)

    def _close(self) -> None:
        self._is_closing, self._body, self._buffer = True, None, b""
        self._set_deadline(None)
        self._disconnect_exchange()
        self.transport.close()
        self._start_drain_deadline()

    def _disconnect_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnect()
        self.writable.notify_all()

    # Waiting.

    def _set_deadline(self, deadline: Deadlines[HttpConnection] | None) -> None:
        """The one thing that the client is waited for to send, if any."""
        if self._deadline is not None:
            self._deadline.cancel(self)
        self._deadline = deadline
        if deadline is not None:
            deadline.start(self)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    def _start_drain_deadline(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._timeouts.drain.start(self)

    def on_head_timeout(self) -> None:
        """One that never said anything is closed without a word."""
        if self._buffer:
            self._reject(BadRequest(408, "The request's headers took too long."))
        else:
            self._close()

    def on_body_timeout(self) -> None:
        self._reject(BadRequest(408, "The request's body took too long."))

    def on_drain_timeout(self) -> None:
        """Slow is not stalled: whoever took something gets as much time again."""
        if self.transport.get_write_buffer_size() < self._unsent_bytes:
            self._start_drain_deadline()
        else:
            self.abort(hard=True)


class ConnectionTimeouts:
    """What clients are waited for. drain: that they take what was written."""

    def __init__(self, context: ServerContext) -> None:
        loop, limits = context.loop, context.limits
        self.head = Deadlines(loop, limits.head_timeout, HttpConnection.on_head_timeout)
        self.body = Deadlines(loop, limits.body, HttpConnection.on_body_timeout)
        self.idle = Deadlines(loop, context.config.timeout_keep_alive, HttpConnection.shutdown)
        self.linger = Deadlines(loop, limits.linger_timeout, HttpConnection.shutdown)
        self.drain = Deadlines(loop, limits.stall_timeout, HttpConnection.on_drain_timeout)
