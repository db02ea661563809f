"""State that all connections of one server share, its limits, and helpers for asyncio
and sockets.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

if sys.platform != "win32":
    import fcntl
    import termios

Address = tuple[str, int | None]

log = logging.getLogger("uvicorn.error")
"""uvicorn's logger, so that its level applies here too."""


class HttpLimits(Struct, frozen=True):
    """Limits of the HTTP server. Times are in seconds.

    max_head_bytes: request line and headers together.
    max_buffered_bytes: unread body, or pipelined requests; reading pauses above it.
    head_timeout: from the connection, or a later request's first byte, to the end of
        the headers.
    body: the interval in which a body must grow by `body * body_rate` bytes, or end.
    body_rate: minimum bytes per second, averaged over `body`.
    body_total: from the end of the headers to the body's last byte.
    linger_timeout: how long the unread rest of a body is read and discarded.
    stall_timeout: how long a client may read nothing of what was written.
    peek: interval between disconnect checks while reading is paused.
    connections: concurrent connections; further ones get a 503.
    per_address: concurrent connections from one address that is not loopback.
    """

    max_head_bytes: int = 32 * 1024
    max_buffered_bytes: int = 64 * 1024
    head_timeout: float = 10.0
    body: float = 15.0
    body_rate: int = 1024
    body_total: float = 3600.0
    linger_timeout: float = 5.0
    stall_timeout: float = 60.0
    peek: float = 0.2
    connections: int = 16384
    per_address: int = 4096


class ServerContext:
    """The shared state of one server.

    state: uvicorn's state; counts requests and holds the connections and tasks that a
        graceful shutdown waits for.
    lifespan_state: the state that the application's lifespan startup set, copied into
        every request's scope.
    """

    def __init__(
        self, config: Config, state: ServerState, lifespan_state: dict[str, Any], limits: HttpLimits
    ) -> None:
        if not config.loaded:
            config.load()
        self.config = config
        self.state = state
        self.lifespan_state = lifespan_state
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.task_context = contextvars.copy_context()
        self.app = cast(ASGIApp, config.loaded_app)  # pyright: ignore[reportUnknownMemberType]
        self.connections = cast("set[asyncio.Protocol]", state.connections)
        self.asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._fields: list[tuple[bytes, bytes]] = []
        self._header_lines = b""
        self._address: Address | None = None
        self._by_address: dict[str, int] = {}

    def admit(self, host: str | None) -> bool:
        """Count a connection until `release`, and return whether the limits allow it.

        host: the client's address; None for a Unix socket.
        """
        if host is None or is_loopback(host):
            return len(self.connections) <= self.limits.connections
        count = self._by_address[host] = self._by_address.get(host, 0) + 1
        return count <= self.limits.per_address and len(self.connections) <= self.limits.connections

    def release(self, host: str | None) -> None:
        remaining = self._by_address.get(host or "", 0) - 1
        if remaining > 0:
            self._by_address[host or ""] = remaining
        else:
            self._by_address.pop(host or "", None)

    @property
    def is_flooded(self) -> bool:
        """Whether there are so many connections that further ones are reset without a
        response.
        """
        return len(self.connections) > self.limits.connections * 9 // 8

    @property
    def header_lines(self) -> bytes:
        """Header lines of every response: the date, which uvicorn renders every second,
        and the configured headers.
        """
        fields = self.state.default_headers
        if fields is not self._fields:
            self._fields = fields
            self._header_lines = b"".join([b"%b: %b\r\n" % pair for pair in fields])
        return self._header_lines

    @property
    def has_websocket(self) -> bool:
        return self.config.ws_protocol_class is not None

    def build_websocket(self, host: str | None) -> asyncio.Protocol:
        """Create the WebSocket protocol for an upgraded connection, which still counts
        for `host`.
        """
        protocol_class = cast("Callable[..., Any]", self.config.ws_protocol_class)
        protocol = protocol_class(
            config=self.config, server_state=self.state, app_state=self.lifespan_state
        )
        original_connection_lost = protocol.connection_lost

        def connection_lost(error: Exception | None) -> None:
            self.release(host)
            original_connection_lost(error)

        # uvicorn's protocol takes over the connection, so this server's
        # `connection_lost` is no longer called.
        protocol.connection_lost = connection_lost
        return cast("asyncio.Protocol", protocol)

    def intern_address(self, address: Address | None) -> Address | None:
        """Return an equal address as one object shared by all connections."""
        if address != self._address:
            self._address = address
        return self._address


class Wakeup:
    """A condition without a lock: `notify_all` wakes the tasks that wait at that
    moment.

    It holds no container while no task waits.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # A tuple: the empty one is a constant of the interpreter.
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters += (waiter,)
        try:
            await waiter
        finally:
            if waiter.cancelled():
                self._waiters = tuple(other for other in self._waiters if other is not waiter)

    def notify_all(self) -> None:
        waiters = self._waiters
        self._waiters = ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


# Queries and options of a transport's socket.


def read_addresses(transport: asyncio.BaseTransport) -> tuple[Address | None, Address | None]:
    """Return the client's and the server's address in ASGI's form.

    The transport's `get_extra_info` is bypassed, since it caches addresses. For a Unix
    socket the server's address is the path, and the client has none.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return None, None
    with socket.socket(sock.family, sock.type, sock.proto, fileno=sock.fileno()) as duplicate:
        try:
            return _build_address(duplicate.getpeername()), _build_address(
                duplicate.getsockname(), is_server=True
            )
        except OSError:
            # The socket is already disconnected.
            return None, None
        finally:
            # The descriptor belongs to the transport: closing this object must not
            # close it.
            duplicate.detach()


def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address.

    host: in the form of `socket.getpeername`.
    """
    return host.startswith(("127.", "::ffff:127.")) or host == "::1"


def has_disconnected(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed its sending side, even with unread bytes in the
    socket.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return True
    if hasattr(select, "POLLRDHUP"):
        poller = select.poll()
        poller.register(sock.fileno(), select.POLLRDHUP)
        return bool(poller.poll(0))
    if sys.platform == "darwin":
        queue = select.kqueue()
        try:
            events = queue.control(
                [select.kevent(sock.fileno(), select.KQ_FILTER_READ, select.KQ_EV_ADD)], 1, 0
            )
        finally:
            queue.close()
        return any(event.flags & select.KQ_EV_EOF for event in events)
    return False


def count_unread_bytes(transport: asyncio.BaseTransport) -> int:
    """Count the bytes in the socket's receive buffer; 0 where the platform does not
    report them.
    """
    sock = transport.get_extra_info("socket")
    if sys.platform == "win32" or sock is None:
        return 0
    count = bytearray(4)
    fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def reset_transport(transport: asyncio.Transport) -> None:
    """Reset the connection (SO_LINGER 0), so that the peer sees an error instead of a
    normal end of stream.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def _build_address(sockname: tuple[str, int] | str, *, is_server: bool = False) -> Address | None:
    """Convert an address of the socket module to ASGI's form.

    sockname: IPv6 tuples have more than two elements.
    """
    if isinstance(sockname, tuple):
        # Interned because many connections come from one host.
        return sys.intern(sockname[0]), sockname[1]
    return (sockname, None) if is_server else None
