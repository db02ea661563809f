"""A uvicorn server that lets running requests finish before it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import cast

import uvicorn
from msgspec import Struct

from ..http.long_lived import LongLived
from ..pipeline.model_registry import Models
from .configured_models import format_error
from .ports import ListeningPorts, ServerPorts
from .reload import Reloader
from .systemd import Notifier

log = logging.getLogger(__name__)


class ShutdownConfig(Struct, frozen=True):
    """Durations of a graceful shutdown, in seconds.

    timeout: how long running requests may continue.
    grace: minimum time for which the server stays reachable but not ready, so that a
        load balancer notices before the port closes.
    """

    timeout: float = 8.0
    grace: float = 0.0


POLL_INTERVAL = 0.1
"""Seconds between two checks for running work during shutdown; the same as uvicorn's.
"""
_TICK = 0.1
"""Seconds between two updates of the date header, which uvicorn expects."""
_CLOSE_INTERVAL = 0.01
"""Seconds between two checks whether all connections are closed, at the very end."""


class Server(uvicorn.Server):
    """A uvicorn server with graceful shutdown.

    During the shutdown readiness fails and new requests get a retryable error, while
    running requests continue. If they exceed the timeout, they end with their dialect's
    terminal error instead of a closed connection.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *models: Models,
        shutdown_config: ShutdownConfig | None = None,
        server_ports: ServerPorts | None = None,
        reloader: Reloader | None = None,
        notifier: Notifier | None = None,
        on_replaced: Callable[[Sequence[socket.socket]], None] | None = None,
    ) -> None:
        """Create the server.

        on_replaced: called at the end of a shutdown that `replace` has started, with
            sockets that still listen.
        server_ports: ports whose sockets come first among those passed to `run`, in the
            same order.
        """
        self._loop: asyncio.AbstractEventLoop | None = None
        self._should_exit = False
        self._exit_requested = asyncio.Event()
        super().__init__(config)
        self._reloader = reloader
        self._notifier = notifier or Notifier({})
        self._reload_requested = asyncio.Event()
        self._service_task: asyncio.Task[None] | None = None
        self._models = models
        self._shutdown_config = shutdown_config or ShutdownConfig()
        self._server_ports = server_ports or ListeningPorts()
        self._on_replaced = on_replaced
        self._is_being_replaced = False
        self.failure: str | None = None
        """The reason for which a model could not be loaded at startup; the server stops
        then.
        """

    @property
    def should_exit(self) -> bool:
        """Whether the server shuts down. Setting it, from any thread or signal handler,
        begins the shutdown at once.
        """
        return self._should_exit

    @should_exit.setter
    def should_exit(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._should_exit = value
        if value and self._loop is not None:
            with suppress(RuntimeError):  # The loop has been closed.
                self._loop.call_soon_threadsafe(self._exit_requested.set)

    def stop_after_failure(self, name: str, error: BaseException) -> None:
        self.failure = f"cannot serve {name}: {format_error(error)}"
        self.should_exit = True

    def replace(self) -> None:
        """Shut down for a new process, which continues on the same sockets: clients
        that connect meanwhile wait in the accept queue.
        """
        # Called again by each failed restart during the drain.
        self._is_being_replaced |= not self.should_exit
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is uvicorn's
        """First signal: graceful shutdown. Second: stop without waiting. Third: exit
        immediately without cleanup.

        Does not record the signal: uvicorn re-raises recorded signals at exit, which
        would look like a failure.
        """
        if self.force_exit:
            os._exit(1)
        self._is_being_replaced = False
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_reload(self, _sig: int, _frame: FrameType | None) -> None:
        """Handle a signal that requests a reload; during the startup, the reload is
        deferred until the server runs.
        """
        if self._loop is None:
            self._reload_requested.set()
        else:
            # Setting the event alone would not wake a loop that waits for I/O.
            self._loop.call_soon_threadsafe(self._reload_requested.set)

    async def _serve_service_manager(self) -> None:
        """Reload on request, and send keepalive messages to the service manager's
        watchdog.
        """
        while True:
            try:
                async with asyncio.timeout(self._notifier.watchdog_interval):
                    await self._reload_requested.wait()
            except TimeoutError:
                self._notifier.notify_alive()
                continue
            self._reload_requested.clear()
            self._notifier.notify_reloading()
            if self._reloader is not None:
                await self._reloader.reload()
            self._notifier.notify_ready()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._notifier.notify_ready()
            self._service_task = asyncio.create_task(self._serve_service_manager())
        # Other sockets, such as a Unix socket, come after those of the ports.
        for port, server in zip(self._server_ports.ports, self.servers, strict=False):
            port.attach(server, self._build_protocol, self.server_state.connections)

    def _build_protocol(self) -> asyncio.Protocol:
        """Create the protocol of an accepted connection, as uvicorn does."""
        protocol_class = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks = (ticks + 1) % 864_000
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._exit_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._is_being_replaced:
            self._notifier.notify_reloading()
        else:
            self._notifier.notify_stopping()
        duplicates = [item.dup() for item in sockets or ()] if self._is_being_replaced else []
        if self._service_task is not None:
            self._service_task.cancel()
        # Closed before the drain: from now on readiness fails, and new requests get a
        # retryable error.
        for models in self._models:
            models.close()
        stop_task = asyncio.create_task(self._stop_models_on_timeout())
        read_clock = asyncio.get_running_loop().time
        # The server waits only for requests that are running now: later ones get an
        # error at once.
        started_at = read_clock()
        running = tuple(self.server_state.tasks)
        # Other connections get `Connection: close` with their next response. Closing
        # them now would lose requests that clients have already sent.
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, LongLived):
                connection.shutdown()
        if self._has_work(running):
            log.info(
                "shutting down: waiting up to %g s for running requests; press Ctrl-C again to "
                "stop now",
                self._shutdown_config.timeout,
            )
        while not self.force_exit:
            # The port of a server that is replaced does not close.
            grace = 0.0 if self._is_being_replaced else self._shutdown_config.grace
            has_waited = read_clock() - started_at >= grace
            if has_waited and (stop_task.done() or not self._has_work(running)):
                break
            await asyncio.sleep(POLL_INTERVAL)
        # Each port keeps a duplicate of its socket: while it is open, clients could
        # connect, but would never be served.
        self._server_ports.close()
        await self._close(sockets or ())
        stop_task.cancel()
        # Within the event loop: its end would wait for threads that a dead device may
        # have blocked for ever.
        if self._is_being_replaced and self._on_replaced is not None:
            self._on_replaced(duplicates)
        for item in duplicates:
            item.close()

    async def _close(self, sockets: Sequence[socket.socket]) -> None:
        """Close the ports and connections, and the application.

        In place of uvicorn's own, which waits for tenths of a second.
        """
        for server in self.servers:
            server.close()
        for item in sockets:
            item.close()
        state = self.server_state
        notified: set[object] = set()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    # Each time, since the event loop may still add connections that it
                    # has accepted before the ports closed.
                    for connection in state.connections - notified:
                        notified.add(connection)
                        connection.shutdown()
                    if self.force_exit:
                        break
                    await asyncio.sleep(_CLOSE_INTERVAL)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            log.error("cancelling %d tasks that do not end", len(state.tasks))
            for task in tuple(state.tasks):
                task.cancel("the shutdown exceeds its time")
        if not self.force_exit:
            await self.lifespan.shutdown()

    def _has_work(self, running: Sequence[asyncio.Task[None]]) -> bool:
        """Whether client requests or background work are still running."""
        states = (
            engine.health()
            for models in self._models
            for model in models
            for engine in model.engines
        )
        return not all(task.done() for task in running) or any(
            state.running or state.waiting for state in states
        )

    async def _stop_models_on_timeout(self) -> None:
        await asyncio.sleep(self._shutdown_config.timeout)
        await asyncio.gather(*(models.stop() for models in self._models))
