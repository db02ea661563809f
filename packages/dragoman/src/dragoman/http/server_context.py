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
        # Connections that get a 503 linger for seconds. They must not count for the
        # limits: an address above its own would keep others out with them.
        self._rejected: set[asyncio.Protocol] = set()

    def admit(self, connection: asyncio.Protocol, host: str | None) -> bool:
        """Count one of `connections` for the limits until `release`, and return True; or
        return False if it exceeds them.

        host: the client's address; None for a Unix socket.
        """
        is_counted = not (host is None or is_loopback(host) or self.limits.proxies.trusts(host))
        count = self._by_address.get(host or "", 0) + 1
        if len(self.connections) - len(self._rejected) > self.limits.connections or (
            is_counted and count > self.limits.per_address
        ):
            self._rejected.add(connection)
            return False
        if is_counted:
            self._by_address[host or ""] = count
        return True

    def release(self, connection: asyncio.Protocol, host: str | None) -> None:
        """Stop counting a connection that `admit` has judged."""
        if connection in self._rejected:
            self._rejected.remove(connection)
            return
        remaining = self._by_address.get(host or "", 0) - 1
        if remaining > 0:
            self._by_address[host or ""] = remaining
        else:
            self._by_address.pop(host or "", None)

    @property
    def is_flooded(self) -> bool:
        """Whether so many connections were rejected that further ones are reset without
        a response.
        """
        return len(self._rejected) > self.limits.connections // 8

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
            self.release(protocol, host)
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
