"""A worker process: a server on inherited sockets that is controlled by its supervisor
instead of by signals.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import uvicorn

from ...core.errors import DragomanError
from ...pipeline.model_registry import Models
from ...serving.clock import Clock, SystemClock
from ...settings import Settings, SettingsError
from ..configured_models import format_error
from ..graceful_shutdown import Server, ShutdownConfig
from ..greeting import build_greeting
from ..hosted_model import HostedModel, build_front_end_models
from ..reload import RELOADED, Reloader
from ..server_assembly import assemble_server
from ..tls import build_tls_context
from ..uvicorn_config import build_uvicorn_config
from .messages import (
    KeysRead,
    ReadKeys,
    Ready,
    Reload,
    Reloaded,
    StartFailed,
    Stop,
)
from .supervisor_link import SupervisorLink

STARTUP_FAILURE = 3
"""Exit status of a process that could not start, the same as uvicorn's."""
ENGINE_FAILURE = 1
"""Exit status of a process whose engine has failed. The supervisor replaces the
process.
"""
ACCEPT_PAUSE = 1e-9
"""Seconds to sleep after each accepted connection; the actual sleep takes about 60
microseconds.
"""


class WorkerServer(Server):
    """The server of a worker.

    greet: builds the startup lines that the supervisor prints.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        models: Models,
        shutdown_config: ShutdownConfig,
        reloader: Reloader,
        link: SupervisorLink,
        greet: Callable[[], Sequence[str]],
    ) -> None:
        build_protocol = cast("Callable[..., asyncio.Protocol]", config.http)

        def accept(*arguments: Any, **options: Any) -> asyncio.Protocol:  # noqa: ANN401 - uvicorn's
            # All workers accept from the same socket. On busy cores the running one
            # would accept most of a burst before the others wake up. libuv has the same
            # pause (UV_TCP_SINGLE_ACCEPT) for Node's clusters.
            time.sleep(ACCEPT_PAUSE)
            return build_protocol(*arguments, **options)

        config.http = cast("type[asyncio.Protocol]", accept)
        super().__init__(config, models, shutdown_config=shutdown_config, notifier=link)
        self._link = link
        self._worker_reloader = reloader
        self._greet = greet
        self.has_failed_engine = False
        self._tasks: set[asyncio.Task[None]] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignore the signal: terminals and service managers send it to all processes,
        and the supervisor handles it.
        """

    def stop_after_failure(self, name: str, error: BaseException) -> None:
        super().stop_after_failure(name, error)
        if self.failure is not None:
            self._link.report(StartFailed(self.failure))

    def replace(self) -> None:
        """Shut down gracefully; the supervisor then starts another worker."""
        if not self.should_exit:
            self.has_failed_engine = True
            self._link.report(StartFailed("its engine does not recover"))
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Opened before the models are loaded, so that the loss of the supervisor is
        # noticed meanwhile.
        await self._link.open()
        self._tasks.add(asyncio.create_task(self._follow_commands()))
        await super().startup(sockets)
        if self.started:
            self._link.report(Ready(tuple(self._greet())))

    async def _follow_commands(self) -> None:
        """Execute the supervisor's commands. If it dies, shut down: no process would
        replace this worker.
        """
        while (command := await self._link.receive()) is not None:
            match command:
                case Stop(is_forced):
                    self.force_exit = self.force_exit or is_forced
                    self.should_exit = True
                case ReadKeys(number):
                    self._run(self._read_keys(number))
                case Reload():
                    self._run(self._reload())
                case _:
                    pass
        self.should_exit = True

    def _run(self, command: Coroutine[None, None, None]) -> None:
        """Execute a command in a task, so that others are executed while it waits, for
        example for a hub.
        """
        task = asyncio.create_task(command)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_keys(self, number: int) -> None:
        problem = await self._worker_reloader.reload_keys()
        self._link.report(KeysRead(number, problem))

    async def _reload(self) -> None:
        reloader = self._worker_reloader
        before = reloader.settings
        await reloader.reload(has_read_keys=True)
        # Only the adopted settings: the supervisor passes them on to workers that start
        # later.
        changed = (
            name for name in RELOADED if getattr(reloader.settings, name) != getattr(before, name)
        )
        self._link.report(Reloaded(tuple(sorted(changed))))


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The settings and sockets of a worker process.

    number: identifies the worker; its replacement has the same number.
    configured: the settings as they were read, with which a reload compares the new
        ones.
    settings: the settings with the actual listening address.
    secret: the key that encrypts and signs reasoning.
    listeners: sockets to accept connections from.
    read_settings: reads the settings again for a reload; None if that is not possible.
    watchdog_interval: seconds between two keepalive messages to the supervisor.
    engine: the shared engine process; None if the worker has its own engine.
    store_warning: what the supervisor has found when it opened the store.
    """

    number: int
    configured: Settings
    settings: Settings
    secret: bytes
    listeners: Sequence[socket.socket]
    read_settings: Callable[[], Settings] | None
    watchdog_interval: float
    engine: EngineLink | None = None
    store_warning: str | None = None


@dataclass(frozen=True, slots=True)
class EngineLink:
    """The connection data of the engine process for its front ends.

    path: path of its Unix socket.
    front_ends: number of front ends.
    model: the model that it serves.
    """

    path: str
    front_ends: int
    model: HostedModel

    def build_models(self, settings: Settings, clock: Clock) -> Models:
        try:
            return build_front_end_models(settings, clock, self.model, self.path, self.front_ends)
        except (OSError, ValueError, DragomanError) as error:
            raise SettingsError(f"cannot serve {settings.model}: {format_error(error)}") from error


def serve_as_worker(plan: WorkerPlan, end: socket.socket) -> int:
    """Serve until the supervisor stops the worker, and return the exit code.

    end: this process's end of the socket pair to the supervisor.
    """
    link = SupervisorLink(end, plan.watchdog_interval)
    settings = plan.settings
    try:
        tls = build_tls_context(settings)
        build = None if plan.engine is None else plan.engine.build_models
        assembled = assemble_server(
            settings,
            plan.secret,
            build=build,
            metrics_exchange=link,
            keys_exchange=link,
            store_warning=plan.store_warning,
        )
        # Loading is awaited: `Ready` shows that this worker could load its model, and
        # only then the others start.
        assembled.models.waits_for_loads = True
        reloader = Reloader(
            plan.configured,
            assembled.application,
            assembled.models,
            SystemClock(),
            tls,
            plan.read_settings,
        )
        server = WorkerServer(
            build_uvicorn_config(assembled.application, settings, tls),
            assembled.models,
            ShutdownConfig(settings.shutdown_timeout, settings.shutdown_grace),
            reloader,
            link,
            lambda: build_greeting(
                settings, assembled.models, settings.port if settings.uds is None else None
            ),
        )
        assembled.models.on_start_failure = server.stop_after_failure
        assembled.models.on_unusable_process = server.replace
    except SettingsError as error:
        link.report(StartFailed(str(error)))
        return STARTUP_FAILURE
    server.run(sockets=list(plan.listeners))
    if server.has_failed_engine:
        return ENGINE_FAILURE
    return 0 if server.failure is None else STARTUP_FAILURE
