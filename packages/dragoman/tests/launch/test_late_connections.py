"""Connections that the event loop has accepted, but adds while the server closes."""

from __future__ import annotations

import asyncio
import logging

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from dragoman.launch.graceful_shutdown import Server


class Silent(asyncio.Protocol):
    """A connection without requests. successor: is added when this one closes."""

    def __init__(self, server: Server, successor: Silent | None = None) -> None:
        self._connections = server.server_state.connections
        self._successor = successor

    def shutdown(self) -> None:
        self._connections.remove(self)  # pyright: ignore[reportArgumentType]
        if self._successor is not None:
            self._connections.add(self._successor)  # pyright: ignore[reportArgumentType]


async def run_app(_scope: Scope, _receive: Receive, _send: Send) -> None: ...


async def test_shutdown_closes_late_connections(caplog: pytest.LogCaptureFixture) -> None:
    config = uvicorn.Config(
        run_app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=2
    )
    server = Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    server.server_state.connections.add(Silent(server, Silent(server)))  # pyright: ignore[reportArgumentType]
    with caplog.at_level(logging.ERROR):
        await server.shutdown()
    assert not server.server_state.connections
    assert "do not end" not in caplog.text
