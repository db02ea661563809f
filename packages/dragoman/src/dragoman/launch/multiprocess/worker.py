"""A worker process: a server on inherited sockets that is controlled by its supervisor
instead of by signals.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from types import FrameType
from typing import Any, cast

import uvicorn

from ...core.errors import DragomanError
from ...core.frames import read_frame
from ...pipeline.models import Models
from ...serving.clock import Clock, SystemClock
from ...serving.http_metrics import MetricFamily
from ...settings import Settings, SettingsError
from ..listener import ALIVE, Notifier, build_tls_context
from ..models import format_error
from ..reload import RELOADED, Reloader
from ..remote_engine import HostedModel, build_front_end_models
from ..server import Server, ShutdownConfig, assemble_server, build_greeting, build_uvicorn_config
from .messages import (
    Alive,
    AnyCommand,
    CollectMetrics,
    MergeRequest,
    MergedMetrics,
    MetricsReport,
    Ready,
    Reload,
    Reloaded,
    StartFailed,
    Stop,
    WorkerReport,
    decode_command,
    encode_frame,
)

log = logging.getLogger(__name__)

STARTUP_FAILURE = 3
"""Exit status of a process that could not start, the same as uvicorn's."""
ACCEPT_PAUSE = 1e-9
"""Seconds to sleep after each accepted connection; the actual sleep takes about 60
microseconds.
"""


class SupervisorLink(Notifier):
    """A worker's connection to its supervisor: sends service notifications and reports,
    and receives commands.

    Implements MetricsExchange.
    """

    def __init__(self, end: socket.socket, watchdog_interval: float | None = None) -> None:
        super().__init__({})
        self.watchdog_interval = watchdog_interval
        self._end = end
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._read_metrics: Callable[[], Sequence[MetricFamily]] = tuple
        self._merges: dict[int, asyncio.Future[Sequence[MetricFamily]]] = {}
        self._ids = count()
        self._is_lost = False

    async def open(self) -> None:
        """Connect with the running event loop."""
        self._streams = await asyncio.open_unix_connection(sock=self._end)

    def send(self, state: str) -> None:
        """Forward a keepalive to the supervisor. Other states are dropped: it notifies
        the service manager itself.
        """
        if state == ALIVE:
            self.report(Alive())

    def report(self, message: WorkerReport) -> None:
        # Without streams the event loop does not run yet: the report is a failure to
        # start, and the process exits.
        if self._streams is None:
            self._end.sendall(encode_frame(message))
        else:
            self._streams[1].write(encode_frame(message))

    async def receive(self) -> AnyCommand | None:
        """Return the next command that the link does not handle itself; None if the
        supervisor has died.
        """
        assert self._streams is not None
        reader = self._streams[0]
        try:
            while True:
                match decode_command(await read_frame(reader)):
                    case CollectMetrics():
                        self.report(MetricsReport(tuple(self._read_metrics())))
                    case MergedMetrics(id, families):
                        waiting = self._merges.get(id)
                        # The client may have disconnected while the supervisor
                        # collected the metrics.
                        if waiting is not None and not waiting.done():
                            waiting.set_result(families)
                    case command:
                        return command
        except (asyncio.IncompleteReadError, ConnectionError):
            # Later merges fail at once, since no reply would arrive.
            self._is_lost = True
            for waiting in self._merges.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the supervisor has died"))
            return None

    def provide(self, read: Callable[[], Sequence[MetricFamily]]) -> None:
        self._read_metrics = read

    async def merge(self) -> Sequence[MetricFamily]:
        if self._is_lost:
            raise ConnectionError("the supervisor has died")
        id = next(self._ids)
        waiting = asyncio.get_running_loop().create_future()
        self._merges[id] = waiting
        try:
            self.report(MergeRequest(id, tuple(self._read_metrics())))
            return await waiting
        finally:
            del self._merges[id]


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
        self._tasks: set[asyncio.Task[None]] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignore the signal: terminals and service managers send it to all processes,
        and the supervisor handles it.
        """

    def stop_after_failure(self, name: str, error: BaseException) -> None:
        super().stop_after_failure(name, error)
        if self.failure is not None:
            self._link.report(StartFailed(self.failure))

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
                case Reload():
                    # In a task, so that other commands are executed while the reload
                    # waits, for example for a hub.
                    task = asyncio.create_task(self._reload())
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case _:
                    pass
        self.should_exit = True

    async def _reload(self) -> None:
        reloader = self._worker_reloader
        before = reloader.settings
        await reloader.reload()
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
    watchdog_interval: seconds between two keepalive messages to the supervisor; None
        means no watchdog.
    engine: the shared engine process; None if the worker has its own engine.
    """

    number: int
    configured: Settings
    settings: Settings
    secret: bytes
    listeners: Sequence[socket.socket]
    read_settings: Callable[[], Settings] | None
    watchdog_interval: float | None
    engine: EngineLink | None = None


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
        assembled = assemble_server(settings, plan.secret, build=build, metrics_exchange=link)
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
    except SettingsError as error:
        link.report(StartFailed(str(error)))
        return STARTUP_FAILURE
    server.run(sockets=list(plan.listeners))
    return 0 if server.failure is None else STARTUP_FAILURE
