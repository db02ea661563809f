"""Serves an ASGI application on a free port of the loopback interface."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, cast

from dragoman import Settings
from dragoman.launch.graceful_shutdown import Server
from dragoman.launch.uvicorn_config import build_uvicorn_config

from .event_loop_thread import EventLoopThread

if TYPE_CHECKING:
    from starlette.types import ASGIApp

KEY = "none"
"""The API key in `environment`. The servers accept any; the SDKs require one."""


class AppServer:
    """An ASGI application behind Dragoman's HTTP server, from the constructor to `close`."""

    def __init__(
        self,
        app: ASGIApp,
        lifespan: Callable[[], AbstractAsyncContextManager[None]],
        loop_thread: EventLoopThread,
        port: int = 0,
    ) -> None:
        """Start it.

        Args:
            app: answers the requests.
            lifespan: the context in which the application runs.
            loop_thread: runs it.
            port: 0 for a free one.
        """
        self._app = app
        self._lifespan = lifespan
        self._loop_thread = loop_thread
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.port = loop_thread.run(self._start(port))

    @property
    def base_url(self) -> str:
        """The address, without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Stop it. Running requests are aborted."""
        self._loop_thread.run(self._stop())

    async def _start(self, port: int) -> int:
        started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(port, started))
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task
        return await started

    async def _serve(self, port: int, started: asyncio.Future[int]) -> None:
        async with self._lifespan():
            config = build_uvicorn_config(self._app, Settings())
            config.load()
            # Its `run` polls every 0.1 s whether it should exit: too long for each test.
            state = Server(config).server_state
            build_protocol = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)
            listener = await asyncio.get_running_loop().create_server(
                lambda: build_protocol(config=config, server_state=state, app_state={}),
                "127.0.0.1",
                port,
            )
            started.set_result(_read_port(listener.sockets[0]))
            await self._closing.wait()
            listener.close()
            for connection in tuple(state.connections):
                cast("Any", connection).transport.abort()
            running = tuple(state.tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _stop(self) -> None:
        self._closing.set()
        if self._task is not None:
            await self._task


def _read_port(listener: socket.socket) -> int:
    return listener.getsockname()[1]


class FixtureServer:
    """A server that a fixture has started, as clients find it."""

    _server: AppServer

    @property
    def base_url(self) -> str:
        """The address without `/v1`: the base URL of Anthropic's, Ollama's and Google's
        SDKs.
        """
        return self._server.base_url

    @property
    def openai_base_url(self) -> str:
        """The base URL of OpenAI's SDK, with `/v1`."""
        return f"{self.base_url}/v1"

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which SDKs and agents find the server, with API keys."""
        return {
            "OPENAI_BASE_URL": self.openai_base_url,
            "OPENAI_API_BASE": self.openai_base_url,
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_API_KEY": KEY,
            "OLLAMA_HOST": self.base_url,
            "GOOGLE_GEMINI_BASE_URL": self.base_url,
            "GEMINI_API_KEY": KEY,
        }

    def close(self) -> None:
        """Stop the server."""
        self._server.close()
