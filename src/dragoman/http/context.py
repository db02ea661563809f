"""State that all connections of one server share, its limits among it, so that each connection stays small."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from .sockets import Address, is_loopback


class HttpLimits(Struct, frozen=True):
    """Limits of the HTTP server. Times are in seconds.

    max_head_bytes: request line and headers together.
    max_buffered_bytes: unread body, or pipelined requests; reading pauses above it.
    head_timeout: from the connection, or a later request's first byte, to the end of the headers.
    body: the interval in which a body must grow by `body * body_rate` bytes, or end.
    body_rate: minimum bytes per second, averaged over `body`.
    body_total: from the body's first byte to its last.
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


log = logging.getLogger("uvicorn.error")
"""uvicorn's logger, so that its level applies here too."""


class ServerContext:
    """The shared state of one server.

    state: uvicorn's state; counts requests and holds the connections and tasks that a graceful shutdown waits for.
    lifespan_state: the state that the application's lifespan startup set, copied into every request's scope.
    """

    def __init__(self, config: Config, state: ServerState, lifespan_state: dict[str, Any], limits: HttpLimits) -> None:
        if not config.loaded:
            config.load()
        self.config, self.state, self.lifespan_state, self.limits = config, state, lifespan_state, limits
        self.loop, self.task_context = asyncio.get_running_loop(), contextvars.copy_context()
        self.app = cast(ASGIApp, config.loaded_app)  # pyright: ignore[reportUnknownMemberType]
        self.connections = cast("set[asyncio.Protocol]", state.connections)
        self.asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._fields: list[tuple[bytes, bytes]] = []
        self._header_lines = b""
        self._address: Address | None = None
        self._by_address: dict[str, int] = {}

    def admit(self, host: str | None) -> bool:
        """Count a connection from `host` until `release`; return whether the limits allow it. None: a Unix socket."""
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
        """Whether there are so many connections that further ones are reset without a response."""
        return len(self.connections) > self.limits.connections * 9 // 8

    @property
    def header_lines(self) -> bytes:
        """Header lines of every response: the date, which uvicorn renders every second, and the configured headers."""
        fields = self.state.default_headers
        if fields is not self._fields:
            self._fields = fields
            self._header_lines = b"".join([b"%b: %b\r\n" % pair for pair in fields])
        return self._header_lines

    @property
    def has_websocket(self) -> bool:
        return self.config.ws_protocol_class is not None

    def build_websocket(self, host: str | None) -> asyncio.Protocol:
        """Create the WebSocket protocol for an upgraded connection, which still counts for `host`."""
        protocol_class = cast("Callable[..., Any]", self.config.ws_protocol_class)
        protocol = protocol_class(config=self.config, server_state=self.state, app_state=self.lifespan_state)
        original_connection_lost = protocol.connection_lost

        def connection_lost(error: Exception | None) -> None:
            self.release(host)
            original_connection_lost(error)

        # uvicorn's protocol takes the connection over and reports its end only to itself.
        protocol.connection_lost = connection_lost
        return cast("asyncio.Protocol", protocol)

    def intern_address(self, address: Address | None) -> Address | None:
        """Return an equal address as one object shared by all connections."""
        if address != self._address:
            self._address = address
        return self._address
