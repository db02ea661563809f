"""The fixture `dragoman_sim`: a simulated vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dragoman

from .app_server import AppServer, FixtureServer
from .event_loop_thread import EventLoopThread


class SimulatedServer(FixtureServer):
    """A simulated vLLM of the package dragoman-sim on a free port: text, timing, metrics
    and routes are those of a server with a GPU.
    """

    def __init__(self, loop_thread: EventLoopThread, settings: Mapping[str, Any]) -> None:
        """Start the server.

        Args:
            loop_thread: runs it.
            settings: those of `dragoman serve sim`, with underscores.

        Raises:
            SettingsError: dragoman-sim is not installed, or a setting is invalid.
        """
        options: dict[str, Any] = {"store": "memory", "access_log": False, **settings}
        app = dragoman.create_app("sim", **options)
        self._server = AppServer(app, app.lifespan, loop_thread)
