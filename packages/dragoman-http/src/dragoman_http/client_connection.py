"""A connection to a server: writes requests, reads responses, one at a time.

    idle ---> head ---> body ---> idle
      |         |         |
      +---------+---------+---> closed: lost, timed out, invalid,
                                    aborted, or no keepalive

Unrequested bytes close the connection: they could be taken for the next response.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
from collections.abc import Callable

import httptools

from .errors import ConnectionLost, HttpClientError, InvalidResponse, ResponseTimeout
from .response import HttpResponse
from .response_head import (
    HEAD_END,
    BodyFraming,
    ResponseCallbacks,
    check_partial_head,
    parse_response_head,
)

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 100 * 1024
"""Limit of a head together with interim responses before it, and of consecutive chunk
framing without body bytes.
"""
MAX_DRAINED_BYTES = 64 * 1024
"""Limit of the remaining bytes of a response that are read and dropped to reuse its
connection.
"""
DRAIN_TIMEOUT = 1.0
"""Seconds in which an unwanted response must end for its connection to be reused."""


class ClientConnection(asyncio.Protocol):
    """A connection, with at most one request at a time.

    on_idle: called when a response is complete and the connection can be used again.
    on_closed: called once, when it is closed.
    decodes_bodies: see `HttpClient`.
    """

    __slots__ = (
        "_buffer",
        "_callbacks",
        "_deadline",
        "_decodes_bodies",
        "_drained_bytes",
        "_excess_head_bytes",
        "_framing",
        "_has_body",
        "_has_received",
        "_head",
        "_head_bytes",
        "_is_closed",
        "_is_draining",
        "_is_reading",
        "_is_unsent",
        "_keeps_alive",
        "_last_progress",
        "_loop",
        "_on_closed",
        "_on_idle",
        "_parser",
        "_response",
        "_timeout",
        "_unsent_bytes",
        "idle_timer",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_idle: Callable[[ClientConnection], None],
        on_closed: Callable[[ClientConnection], None],
        *,
        decodes_bodies: bool = True,
    ) -> None:
        self._loop = loop
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._decodes_bodies = decodes_bodies
        self._has_body = True
        self._head: asyncio.Future[HttpResponse] | None = None
        self._response: HttpResponse | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._callbacks: ResponseCallbacks | None = None
        self._framing = BodyFraming.NONE
        self._buffer: bytes = b""
        self._head_bytes = 0
        self._excess_head_bytes = 0
        self._unsent_bytes = 0
        self._keeps_alive = True
        self._is_reading = True
        self._has_received = False
        self._timeout = 0.0
        self._last_progress = 0.0
        self._is_closed = False
        self._is_draining = False
        self._is_unsent = False
        self._drained_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self.idle_timer: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """Whether an idle connection can take a request: the server has neither closed
        it nor sent anything.

        The socket is polled, because the event loop may not have processed its events
        yet.
        """
        if self.transport.is_closing():
            return False
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return False
        if hasattr(select, "poll"):
            # `select` fails for descriptors above 1023.
            poller = select.poll()
            poller.register(sock.fileno(), select.POLLIN)
            return not poller.poll(0)
        return not select.select([sock.fileno()], [], [], 0)[0]

    async def request(
        self, data: bytes, body: bytes, read_timeout: float, *, has_body: bool = True
    ) -> HttpResponse:
        """Send a request on an idle connection, and return its response once the head
        has arrived.

        data: the head of the request.
        read_timeout: seconds without progress, in either direction, after which the
            response fails.
        has_body: whether the response can have a body; that to HEAD cannot.

        Raises:
            HttpClientError: the request has no response. The connection is closed.
        """
        self._head = head = self._loop.create_future()
        self._buffer = b""
        self._head_bytes = 0
        self._has_body = has_body
        self._has_received = False
        self._is_draining = False
        self._timeout = read_timeout
        self._last_progress = self._loop.time()
        if read_timeout < math.inf:
            self._set_deadline(self._last_progress + read_timeout)
        # One system call for the usual request; for a large body a second call costs
        # less than copying it.
        if len(body) < 16 * 1024:
            self.transport.write(data + body)
        else:
            self.transport.writelines([data, body])
        self._unsent_bytes = self.transport.get_write_buffer_size()
        try:
            return await head
        except BaseException:
            if self._head is head:
                self.abort()
            elif not head.cancelled() and head.exception() is None:
                # Cancelled in the iteration in which the head arrived.
                head.result().close()
            raise

    def abort(self) -> None:
        """Close the connection at once, which cancels a running request at the
        server.
        """
        self._end(None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.transport = transport
        # With these limits `pause_writing` and `resume_writing` show whether a request
        # has been written completely. With a limit of 0 asyncio's TLS would pause at
        # every write and never resume.
        transport.set_write_buffer_limits(1, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        response = self._response
        # Without a length the end of the connection is the end of the body (RFC 9112,
        # 6.3).
        if response is not None and self._framing is BodyFraming.CLOSE and exc is None:
            self._response = None
            response.feed(b"", is_complete=True)
            self._end(None)
            return
        error: HttpClientError
        if response is not None:
            error = ConnectionLost(
                "the server closed the connection before the response was complete"
            )
        elif self._has_received:
            error = InvalidResponse(
                "the server closed the connection within the head of the response"
            )
        else:
            reason = "the server closed the connection without a response"
            error = ConnectionLost(reason, is_untouched=self._is_unsent)
        self._end(error)

    def eof_received(self) -> None:
        """Let the transport close: the server sends nothing more."""

    def pause_writing(self) -> None:
        self._is_unsent = True

    def resume_writing(self) -> None:
        self._is_unsent = False

    def data_received(self, data: bytes) -> None:
        self._last_progress = self._loop.time()
        callbacks = self._callbacks
        response = self._response
        if response is None or callbacks is None or self._parser is None:
            # A response without a request, for example a 408 before closing. The next
            # request would receive it.
            if self._head is None:
                log.warning("a server sent %d bytes that were not requested", len(data))
                self._end(None)
            else:
                self._feed_head(data)
            return
        pieces = callbacks.pieces
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if pieces and not callbacks.is_complete:
                response.feed(b"".join(pieces), is_complete=False)
            self._end(InvalidResponse(f"the body of the response is malformed: {error}"))
            return
        if callbacks.is_complete:
            self._complete(response, b"".join(pieces), is_exact=not callbacks.has_excess)
        elif pieces:
            piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._excess_head_bytes = 0
            if self._is_draining:
                self._drained_bytes += len(piece)
                # Draining keeps the connection, but a long remainder costs more than a
                # new connection.
                if self._drained_bytes > MAX_DRAINED_BYTES:
                    self._end(None)
                return
            response.feed(piece, is_complete=False)
        else:
            self._excess_head_bytes += len(data)
            if self._excess_head_bytes > MAX_HEAD_BYTES:
                self._end(
                    InvalidResponse("the chunk extensions or trailers of the body are too large")
                )

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading and not self.transport.is_closing():
            self._is_reading = True
            self._last_progress = self._loop.time()
            self.transport.resume_reading()

    def abandon(self, *, drain: bool) -> None:
        if drain and self._keeps_alive and self._response is not None:
            self._timeout = 0.0
            self._last_progress = self._loop.time()
            self._set_deadline(self._last_progress + DRAIN_TIMEOUT)
            self._is_draining = True
            self._drained_bytes = 0
            self.resume_reading()
        else:
            self._end(None)

    def _feed_head(self, data: bytes) -> None:
        self._has_received = True
        data = self._buffer + data
        try:
            while True:
                end = data.find(HEAD_END) + len(HEAD_END)
                is_whole = end >= len(HEAD_END)
                if self._head_bytes + (end if is_whole else len(data)) > MAX_HEAD_BYTES:
                    raise InvalidResponse(
                        f"the head of the response has more than {MAX_HEAD_BYTES} bytes"
                    )
                if not is_whole:
                    check_partial_head(data)
                    self._buffer = data
                    return
                head, parser, callbacks = parse_response_head(data[:end], has_body=self._has_body)
                data = data[end:]
                self._head_bytes += end
                # Bytes of another protocol would be parsed as a response.
                if head.status == 101:
                    raise InvalidResponse("the server switched to another protocol")
                if head.status >= 200:
                    break
                # An interim response, such as 100 Continue.
            response = HttpResponse(head, self, self._loop, is_decoded=self._decodes_bodies)
        except HttpClientError as error:
            self._end(error)
            return
        waiter = self._head
        self._head = None
        self._buffer = b""
        self._response = response
        self._parser = parser
        self._callbacks = callbacks
        self._framing = head.framing
        self._keeps_alive = head.keeps_alive
        self._excess_head_bytes = 0
        if waiter is None or waiter.done():
            # The request was cancelled in this iteration of the event loop: nothing
            # would read the body.
            self._end(None)
            return
        waiter.set_result(response)
        if head.framing is BodyFraming.NONE or callbacks.is_complete:
            self._complete(response, b"", is_exact=not data)
        elif data:
            self.data_received(data)

    def _complete(self, response: HttpResponse, last_piece: bytes, *, is_exact: bool) -> None:
        """Complete the response, and return the connection to the pool or close it.

        is_exact: no bytes follow the response.
        """
        if not is_exact:
            self._end(InvalidResponse("the server sent more bytes than the response contains"))
            return
        self._response = None
        self._parser = None
        self._callbacks = None
        self._set_deadline(None)
        response.feed(last_piece, is_complete=True)
        self.resume_reading()
        # If the request was not written completely, its remaining bytes would still be
        # sent.
        if self._keeps_alive and not self._is_unsent and not self.transport.is_closing():
            self._on_idle(self)
        else:
            self._end(None)

    def _end(self, error: HttpClientError | None) -> None:
        """Close the connection.

        error: why the response, if any, is not complete.
        """
        head = self._head
        self._head = None
        response = self._response
        self._response = None
        self._parser = None
        self._callbacks = None
        self._set_deadline(None)
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None
        reason = error or ConnectionLost("the request was aborted")
        if head is not None and not head.done():
            head.set_exception(reason)
        if response is not None:
            response.fail(reason)
        if not self.transport.is_closing():
            self.transport.abort()
        if not self._is_closed:
            self._is_closed = True
            self._on_closed(self)

    def fail(self, error: HttpClientError) -> None:
        """Close the connection, and fail its request or response with `error`."""
        self._end(error)

    def _set_deadline(self, due: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if due is None else self._loop.call_at(due, self._on_deadline)

    def _on_deadline(self) -> None:
        """Time out unless there was progress. Each piece only records its time:
        resetting a timer would cost more.
        """
        self._deadline = None
        due = self._last_progress + self._timeout
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes < self._unsent_bytes or (
            self._response is not None and self._response.has_unread
        ):
            # The server is still reading the request, or the consumer has not read all
            # pieces.
            due = self._loop.time() + self._timeout
        if self._timeout and due > self._loop.time():
            self._unsent_bytes = unsent_bytes
            self._set_deadline(due)
        else:
            self._end(ResponseTimeout(f"the server was silent for {self._timeout:g} seconds"))
