"""A client's connection: which bytes belong to which request, when to read on, when to give up.

    head ---> body ---> (answered) ---> head ...
      |         |            |
      +---------+------------+--> closed: refused, too slow, told not to be kept, gone

While an answer is written it holds no parser, no headers and no timer. Bytes of a request that comes before the answer
to the one before it are kept as they came, up to a limit; reading pauses there, and the socket is asked now and then
whether the client has left.
"""

from __future__ import annotations

import asyncio

from .bell import Bell
from .body import Body
from .deadlines import Deadlines
from .exchange import Exchange
from .head import END, Head, check_beginning, check_websocket, read_head
from .refused import Refused
from .response import plain
from .shared import Shared, log
from .sockets import Address, ends, has_left, reset, unread


class Connection(asyncio.Protocol):
    """What uvicorn's server makes for every client."""

    __slots__ = (
        "_address", "_body", "_body_until", "_exchange", "_grown", "_held", "_is_closing", "_is_reading", "_shared",
        "_unsent", "_wait", "_waits",
        "client", "drained", "is_full", "is_secure", "server", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, shared: Shared, waits: Waits) -> None:
        self._shared, self._waits = shared, waits
        self._exchange: Exchange | None = None
        self._body: Body | None = None
        self._held = b""
        self._wait: Deadlines[Connection] | None = None
        self._unsent = self._grown = 0
        self._body_until = 0.0
        self._address: str | None = None
        self._is_reading = True
        self._is_closing = False
        self.is_full = self.is_secure = False
        self.client: Address | None = None
        self.server: Address | None = None
        self.drained = Bell()

    # What asyncio and uvicorn tell.

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.transport = transport
        self.client, server = ends(transport)
        self.server = self._shared.address(server)
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        self._shared.connections.add(self)
        self._address = None if self.client is None else self.client[0]
        self._wait_for(self._waits.head)
        if not self._shared.admit(self._address):
            self._turn_away()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio calls it so
        self._shared.connections.discard(self)
        self._shared.release(self._address)
        self._wait_for(None)
        self._waits.drain.end(self)
        self._is_closing = True
        self._leave()

    def eof_received(self) -> None:
        """Whoever has no more to say is gone: the transport closes."""
        self._close()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if self._body is not None:
            self._take_body(self._body, data)
        elif self._exchange is None:
            self._take_head(data)
        else:
            self._hold(data)

    def pause_writing(self) -> None:
        self.is_full = True
        self._watch_drain()

    def resume_writing(self) -> None:
        self.is_full = False
        self._waits.drain.end(self)
        self.drained.ring()

    def shutdown(self) -> None:
        """The server ends: what is asked is answered, and nothing after it."""
        if self._exchange is None:
            self._close()
        else:
            self._exchange.keeps_alive = False

    # What the exchange wants.

    def wants_body(self) -> None:
        self._read_on()
        if self._wait is not self._waits.body:
            self._begin_waiting_for_body()

    def answered(self, *, keeps_alive: bool) -> None:
        self._exchange = None
        self._shared.state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._body is None:
            self._next() if keeps_alive else self._close()
        elif keeps_alive:
            # Nobody reads the rest of this body, but the next request is behind it.
            self._read_on()
            self._wait_for(self._waits.linger)
        else:
            self._linger()

    def cut(self, *, hard: bool) -> None:
        if hard:
            self._is_closing = True
            self._wait_for(None)
            self._leave()
            reset(self.transport)
        else:
            self._close()

    # What becomes of bytes.

    def _take_head(self, data: bytes) -> None:
        """Of bytes that may be the beginning of a head, a head, or more. Empty lines before one are skipped."""
        known = len(self._held)
        data = self._held + data if known else data.lstrip(b"\r\n")
        try:
            end = self._end_of_head(data, known)
            head = read_head(data[:end]) if end else None
            is_websocket = head is not None and head.upgrade == b"websocket" and self._shared.speaks_websocket
            if head is not None and is_websocket:
                check_websocket(head)
        except Refused as refused:
            self._refuse(refused)
            return
        self._held = data[end:]
        if head is None:
            if data and self._wait is not self._waits.head:
                self._wait_for(self._waits.head)
        elif is_websocket:
            self._become_websocket(head, data[end:])
        else:
            self._begin(head)

    def _end_of_head(self, data: bytes, known: int) -> int:
        """0: it has not come. known: bytes that had been looked at before. Raises Refused."""
        end = data.find(END, max(0, known - len(END) + 1)) + len(END)
        is_whole = end >= len(END)
        limit = self._shared.limits.head_bytes
        if (end if is_whole else len(data)) > limit:
            status, what = (431, "headers are") if b"\r\n" in data[:limit] else (414, "first line is")
            raise Refused(status, f"The request's {what} larger than the {limit} bytes that are allowed.")
        if not is_whole:
            check_beginning(data, known)
        return end if is_whole else 0

    def _begin(self, head: Head) -> None:
        self._wait_for(None)
        self._body = head.body
        if head.body is not None:
            self._body_until = self._shared.loop.time() + self._shared.limits.body_total
        self._exchange = exchange = Exchange(self, self._shared, head)
        exchange.start(self, head)
        rest, self._held = self._held, b""
        if rest:
            self.data_received(rest)
        elif head.body is not None and not exchange.is_held_back:
            self._begin_waiting_for_body()

    def _take_body(self, body: Body, data: bytes) -> None:
        exchange = self._exchange
        try:
            piece, rest = body.feed(data)
        except Refused as refused:
            self._refuse(refused) if exchange is not None else self._close()
            return
        if rest is not None:
            self._body = None
        if exchange is not None:
            exchange.feed(piece, is_whole=rest is not None)
            if rest is not None:
                self._wait_for(None)
                self._hold(rest)
            elif exchange.unread > self._shared.limits.held_bytes:
                self._pause()
            else:
                self._note_growth(len(data))
        elif rest is not None:
            self._held = rest
            self._next()

    def _begin_waiting_for_body(self) -> None:
        self._grown = 0
        self._wait_for(self._waits.body)

    def _note_growth(self, size: int) -> None:
        """Of the body that is waited for. Once it has grown enough it has as much time again."""
        limits = self._shared.limits
        self._grown += size
        if self._wait is not self._waits.body:
            self._begin_waiting_for_body()
        elif self._grown >= limits.body_rate * limits.body:
            if self._shared.loop.time() > self._body_until:
                self.body_is_late()
            else:
                self._begin_waiting_for_body()

    def _hold(self, data: bytes) -> None:
        """The next request's, until this one is answered."""
        self._held += data
        if len(self._held) > self._shared.limits.held_bytes:
            self._pause()

    def _next(self) -> None:
        held, self._held = self._held, b""
        self._read_on()
        self._wait_for(self._waits.idle)
        if held:
            self._take_head(held)

    def _become_websocket(self, head: Head, rest: bytes) -> None:
        """uvicorn's own protocol goes on, from the request's first byte. It wants names of headers in lower case."""
        self._wait_for(None)
        self._shared.connections.discard(self)
        protocol = self._shared.websocket(self._address)
        protocol.connection_made(self.transport)
        protocol.data_received(head.written() + rest)
        self.transport.set_protocol(protocol)

    # How it ends.

    def _refuse(self, refused: Refused) -> None:
        log.warning("Invalid HTTP request received: %s", refused.words)
        if self._exchange is not None and self._exchange.has_begun:
            self._exchange.fail()
            return
        self._leave()
        self.transport.write(plain(refused.status, refused.words, self._shared.header_lines + refused.lines))
        self._linger()

    def _turn_away(self) -> None:
        """One connection too many. That it is told so is a courtesy, which has a bound too."""
        if self._shared.is_flooded:
            self.cut(hard=True)
        else:
            self._refuse(Refused(503, "The server has too many connections; try again later.", b"retry-after: 1\r\n"))

    def _linger(self) -> None:
        """Close, but not over what the client still sends: its system would then drop what it has not read yet."""
        if not self.transport.can_write_eof():
            self._close()
            return
        self._is_closing, self._body, self._held = True, None, b""
        self.transport.write_eof()
        self._read_on()
        self._wait_for(self._waits.linger)

    def _close(self) -> None:
        self._is_closing, self._body, self._held = True, None, b""
        self._wait_for(None)
        self._leave()
        # Once: asyncio's TLS transport forgets its protocol at the second close, and can be asked nothing after it.
        if not self.transport.is_closing():
            self.transport.close()
            self._watch_drain()

    def _leave(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.leave()
        self.drained.ring()

    # Waiting.

    def _wait_for(self, wait: Deadlines[Connection] | None) -> None:
        """The one thing that the client is waited for to send, if any."""
        if self._wait is not None:
            self._wait.end(self)
        self._wait = wait
        if wait is not None:
            wait.begin(self)

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()
            # What comes after the bytes that are left in the socket is not seen any more, and neither is their end.
            self._wait_for(self._waits.peek)

    def _read_on(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    def _watch_drain(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._unsent:
            self._waits.drain.begin(self)

    def head_is_late(self) -> None:
        """One that never said anything is closed without a word."""
        if self._held:
            self._refuse(Refused(408, "The request's headers took too long."))
        else:
            self._close()

    def body_is_late(self) -> None:
        self._refuse(Refused(408, "The request's body took too long."))

    def peek(self) -> None:
        """Nothing is read meanwhile. Behind as much again as is held the end of a connection cannot be seen, and no
        client sends so much unasked: it is taken for gone.
        """
        is_pipelining = self._exchange is not None and self._body is None
        if has_left(self.transport) or (is_pipelining and unread(self.transport) > self._shared.limits.held_bytes):
            self.cut(hard=True)
        elif self._wait is None:
            self._wait_for(self._waits.peek)

    def drain_is_late(self) -> None:
        """Slow is not stalled: whoever took something gets as much time again."""
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch_drain()
        else:
            self.cut(hard=True)


class Waits:
    """What clients are waited for. drain: that they take what was written."""

    def __init__(self, shared: Shared) -> None:
        loop, limits = shared.loop, shared.limits
        self.head = Deadlines(loop, limits.head, Connection.head_is_late)
        self.body = Deadlines(loop, limits.body, Connection.body_is_late)
        self.peek = Deadlines(loop, limits.peek, Connection.peek)
        self.idle = Deadlines(loop, shared.config.timeout_keep_alive, Connection.shutdown)
        self.linger = Deadlines(loop, limits.linger, Connection.shutdown)
        self.drain = Deadlines(loop, limits.stall, Connection.drain_is_late)
