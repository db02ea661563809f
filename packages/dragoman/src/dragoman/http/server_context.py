"""The state that all connections of one server share."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from .limits import HttpLimits
from .sockets import Address, is_loopback

if sys.platform != "win32":
    pass


log = logging.getLogger("uvicorn.error")
"""uvicorn's logger, so that its level applies here too."""


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
        if host is None or is_loopback(host) or self.limits.proxies.trusts(host):
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
