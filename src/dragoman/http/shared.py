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

from .limits import Limits
from .sockets import Address

log = logging.getLogger("uvicorn.error")
"""uvicorn's own, so that its level holds here too."""


class Shared:
    """state: uvicorn's, which counts requests and knows who is to be waited for when the server ends.

    lifespan: what the application's start left for its requests.
    """

    def __init__(self, config: Config, state: ServerState, lifespan: dict[str, Any], limits: Limits) -> None:
        if not config.loaded:
            config.load()
        self.config, self.state, self.lifespan, self.limits = config, state, lifespan, limits
        self.loop, self.context = asyncio.get_running_loop(), contextvars.copy_context()
        self.app = cast(ASGIApp, config.loaded_app)  # pyright: ignore[reportUnknownMemberType]
        self.connections = cast("set[asyncio.Protocol]", state.connections)
        self.asgi = {"version": config.asgi_version, "spec_version": "2.3"}
        self._fields: list[tuple[bytes, bytes]] = []
        self._lines = b""
        self._address: Address | None = None

    @property
    def header_lines(self) -> bytes:
        """Of every response: the date, as uvicorn makes it anew each second, and what its configuration says."""
        fields = self.state.default_headers
        if fields is not self._fields:
            self._fields = fields
            self._lines = b"".join([b"%b: %b\r\n" % pair for pair in fields])
        return self._lines

    @property
    def speaks_websocket(self) -> bool:
        return self.config.ws_protocol_class is not None

    def websocket(self) -> asyncio.Protocol:
        """A protocol for a connection that is to be one."""
        make = cast("Callable[..., asyncio.Protocol]", self.config.ws_protocol_class)
        return make(config=self.config, server_state=self.state, app_state=self.lifespan)

    def address(self, address: Address | None) -> Address | None:
        """The same, as one object for all connections that came to it."""
        if address != self._address:
            self._address = address
        return self._address
