"""What all connections of one server have in common, so that each of them has little."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable
from typing import Any, cast

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import ServerState

from .limits import HttpLimits
from .sockets import Address

log = logging.getLogger("uvicorn.error")
"""uvicorn's own, so that its level holds here too."""


class ServerContext:
    """state: uvicorn's, which counts requests and knows who is to be waited for when the server ends.

    lifespan: what the application's start left for its requests.
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

    @property
    def header_lines(self) -> bytes:
        """Of every response: the date, as uvicorn makes it anew each second, and what its configuration says."""
        fields = self.state.default_headers
        if fields is not self._fields:
            self._fields = fields
            self._header_lines = b"".join([b"%b: %b\r\n" % pair for pair in fields])
        return self._header_lines

    @property
    def has_websocket(self) -> bool:
        return self.config.ws_protocol_class is not None

    def build_websocket(self) -> asyncio.Protocol:
        """A protocol for a connection that is to be one."""
        protocol_class = cast("Callable[..., asyncio.Protocol]", self.config.ws_protocol_class)
        return protocol_class(config=self.config, server_state=self.state, app_state=self.lifespan_state)

    def intern_address(self, address: Address | None) -> Address | None:
        """The same, as one object for all connections that came to it."""
        if address != self._address:
            self._address = address
        return self._address
