"""HTTP/1.1 under uvicorn's server, which owns the sockets, TLS, signals, the lifespan and WebSockets."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from .connection import ConnectionTimeouts, HttpConnection
from .context import HttpLimits, ServerContext


class Http11ProtocolFactory:
    """Creates the connections of one server: passed to `uvicorn.Config` as `http` in place of a protocol class."""

    def __init__(self, limits: HttpLimits | None = None) -> None:
        self._limits = limits or HttpLimits()
        self._per_server: tuple[ServerContext, ConnectionTimeouts] | None = None

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> HttpConnection:
        # uvicorn's servers each have a state of their own: one factory may serve several, one after the other.
        if self._per_server is None or self._per_server[0].state is not server_state:
            context = ServerContext(config, server_state, app_state, self._limits)
            self._per_server = context, ConnectionTimeouts(context)
        return HttpConnection(*self._per_server)
