"""HTTP/1.1 under uvicorn's server, which keeps the sockets, TLS, signals, the lifespan and WebSockets."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from .connection import Connection, Waits
from .limits import Limits
from .shared import Shared


class Http11:
    """Makes the connections of one server: what `uvicorn.Config` takes as `http`, in the place of a protocol class."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._made: tuple[Shared, Waits] | None = None

    def __call__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Connection:
        if self._made is None or self._made[0].state is not server_state:
            shared = Shared(config, server_state, app_state, self._limits)
            self._made = shared, Waits(shared)
        return Connection(*self._made)
