"""The supervisor of the worker processes, from their start to their shutdown.

If the workers share an engine, the engine process starts before them, stops after them,
and is replaced like them.

The supervisor runs no event loop and no threads, since it forks. It always holds the
listening sockets: when a worker dies, new connections wait for its replacement instead
of being refused.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from ...engines.remote import EngineChanges
from ...serving.key_reloader import KeysReport
from ...serving.merged_metrics import MetricFamily
from ...settings import Settings, SettingsError
from ..hosted_model import HostedModel
from ..listener import SocketFile, listen
from ..logs import ENGINE, describe_process, name_worker
from ..model_plan import ModelPlan
from ..process_setup import enable_collector, prepare_process
from ..server_assembly import check_state
from ..signals import install_signal_handlers
from ..systemd import Notifier
from ..tls import build_tls_context
from .engine_process import EnginePlan, serve_engine
from .key_rounds import KeyRounds
from .messages import (
    Alive,
    AnyReport,
    CollectMetrics,
    EngineChanged,
    EngineReady,
    KeysRead,
    KeysReply,
    KeysRequest,
    MergedMetrics,
    MergeRequest,
    MetricsReport,
    ReadKeys,
    Ready,
    Reload,
    Reloaded,
    StartFailed,
    Stop,
    WorkerChannel,
)
from .metrics_hub import ENGINE_NUMBER, MetricsHub
from .worker import EngineLink, WorkerPlan, serve_as_worker
from .worker_checks import (
    check_engines,
    check_workers,
    count_workers,
    describe_workers,
)
from .worker_watchdog import WorkerWatchdog

log = logging.getLogger(__name__)

FIRST_DELAY = 0.5
MAX_DELAY = 30.0
"""Backoff in seconds before a worker that died during its start is replaced; the delay
doubles each time.
"""
MAX_FIRST_FAILURES = 3
"""Deaths of a worker during its start after which the server gives up if no worker has
served, and else serves without it until it starts.
"""
RELOAD_SECONDS = 60.0
"""Time for the reload of a worker, which may wait for a hub, before the next one
begins.
"""
ENGINE_STOP_TIME = 60.0
"""Seconds in which the engine process must stop after the last worker."""
STOP_MARGIN = 10.0
"""Seconds beyond the shutdown settings after which workers are killed."""
ENGINE_BACKLOG = 2048
"""Connections of front ends that may wait for a new engine process."""
_SIGNALS = (
    (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
    if sys.platform != "win32"
    else ()
)


def run_workers(
    settings: Settings,
    print_line: Callable[[str], None],
    read_settings: Callable[[], Settings] | None = None,
) -> int:
    """Serve with several processes until a signal stops the server; return the exit
    code. Parameters as `launch.run`.

    Raises: SettingsError for a configuration that cannot be served.
    """
    shared = check_workers(settings)
    configured = settings
    option = describe_workers(settings)

    def read_checked() -> Settings:
        """Read the settings for a reload, which may add models."""
        assert read_settings is not None
        new = read_settings()
        check_engines(new, option)
        return new

    settings, inherited, secret = prepare_process(settings)
    # Only a check: each worker loads the certificate itself.
    build_tls_context(settings)
    # The same for these: the engine process, which starts first, may take minutes.
    state = check_state(settings, os.environ)
    socket_file = None
    if inherited:
        listeners = inherited
    elif settings.uds is not None:
        socket_file = SocketFile(settings.uds, int(settings.uds_mode, 8))
        listeners = [socket_file.listener]
    else:
        listeners = [listen(settings)]
        settings = msgspec.structs.replace(settings, port=listeners[0].getsockname()[1])
    enable_collector()
    try:
        read = None if read_settings is None else read_checked
        with ExitStack() as stack:
            engine_socket = None
            if shared is not None:
                # A temporary directory is accessible to this user only, so no other
                # user can connect.
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dragoman-"))
                engine_socket = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
                engine_socket.bind(str(Path(folder) / "engine.sock"))
                engine_socket.listen(ENGINE_BACKLOG)
            notifier = Notifier(os.environ)
            Supervisor(
                configured,
                settings,
                secret,
                listeners,
                print_line,
                notifier,
                read,
                engine_socket,
                state.store_warning,
                shared,
            ).run()
    finally:
        if socket_file is not None:
            socket_file.remove()
    return 0


@dataclass(slots=True, eq=False)
class WorkerProcess:
    """A worker process, or the engine process.

    number: the worker's number, or ENGINE_NUMBER.
    generation: number of the reload whose settings it has; 0 before the first reload.
    failure: the reason that it reported before its exit.
    """

    number: int
    pid: int
    channel: WorkerChannel
    generation: int
    is_ready: bool = False
    failure: str | None = None

    @property
    def is_engine(self) -> bool:
        return self.number == ENGINE_NUMBER

    @property
    def name(self) -> str:
        """The name of the process in the log."""
        return describe_process(ENGINE if self.is_engine else self.number)


@dataclass(slots=True)
class RestartDelays:
    """The delays before workers are replaced: none for one that has served, else an
    exponential backoff.
    """

    failures: dict[int, int] = field(default_factory=dict[int, int])
    """Number of consecutive deaths during the start, by number of the worker."""

    def note_ready(self, number: int) -> None:
        self.failures.pop(number, None)

    def note_death(self, number: int, *, has_served: bool) -> float:
        """Record the death of a worker, and return the delay before its replacement, in
        seconds.
        """
        # The backoff is only for workers that cannot start: for others a delay would
        # only cost capacity.
        if has_served:
            return 0.0
        self.failures[number] = self.failures.get(number, 0) + 1
        return min(FIRST_DELAY * 2 ** (self.failures[number] - 1), MAX_DELAY)


class Supervisor:
    """Runs the workers of a server.

    configured: the settings as they were read.
    settings: the settings with the actual listening address.
    secret: the key that encrypts and signs reasoning.
    listeners: sockets that the workers accept connections from.
    print_line: prints the greeting when all workers serve.
    notifier: notifies the service manager.
    read_settings: reads the settings again for a reload; None if that is not possible.
    engine_socket: the listening socket of the engine process; None if each worker has
        its own engine.
    store_warning: what was found when the store was checked; None if nothing.
    shared: the plan of the model of the engine process.
    """

    def __init__(
        self,
        configured: Settings,
        settings: Settings,
        secret: bytes,
        listeners: Sequence[socket.socket],
        print_line: Callable[[str], None],
        notifier: Notifier,
        read_settings: Callable[[], Settings] | None = None,
        engine_socket: socket.socket | None = None,
        store_warning: str | None = None,
        shared: ModelPlan | None = None,
    ) -> None:
        self._configured = configured
        self._settings = settings
        self._secret = secret
        self._engine_socket = engine_socket
        self._store_warning = store_warning
        self._shared = shared
        self._hosted_model: HostedModel | None = None
        self._engine_changes: EngineChanges | None = None
        self._count = count_workers(settings)
        self._listeners = listeners
        self._print_line = print_line
        self._notifier = notifier
        self._read_settings = read_settings
        self._workers: dict[int, WorkerProcess] = {}
        self._starts: dict[int, float] = {0 if engine_socket is None else ENGINE_NUMBER: 0.0}
        """Times at which workers start, by number. The first worker starts alone, since
        it creates the store and checks the model for the others; the engine process
        starts before it.
        """
        self._delays = RestartDelays()
        self._metrics = MetricsHub(
            self._collect_metrics, engine_restarts=None if engine_socket is None else 0
        )
        self._has_served = False
        """Whether a worker has served: from then on the server does not give up."""
        self._has_started = False
        self._greeting: Sequence[str] = ()
        self._failure: str | None = None
        self._stop_requests = self._stops_sent = 0
        self._is_engine_stopped = False
        self._kill_at: float | None = None
        self._is_reload_requested = self._is_reloading = False
        self._generation = 0
        self._reload_queue: list[int] = []
        self._reloading: int | None = None
        self._reload_deadline: float | None = None
        self._new_settings: Settings | None = None
        self._key_rounds = KeyRounds()
        self._watchdog = WorkerWatchdog(notifier.watchdog_interval, time.monotonic())

    def run(self) -> None:
        """Serve until a signal stops the server. Raises SettingsError if the server
        cannot start.
        """
        with ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            # Signals wake the selector through this pair: Python resumes `select` after
            # a handler (PEP 475).
            self._wakeup, write_end = socket.socketpair()
            stack.enter_context(self._wakeup)
            stack.enter_context(write_end)
            for end in (self._wakeup, write_end):
                end.setblocking(False)
            self._selector.register(self._wakeup, selectors.EVENT_READ)
            previous = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
            stack.callback(signal.set_wakeup_fd, previous)
            install_signal_handlers(self, self._handle_reload)
            # A handler is needed: without one SIGCHLD is ignored and not written to the
            # wakeup descriptor.
            signal.signal(signal.SIGCHLD, _wake)
            # After an error here no worker may be left running.
            stack.callback(self._kill_all)
            while self._workers or (self._starts and not self._stop_requests):
                self._step()
        if self._failure is not None:
            raise SettingsError(self._failure)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler's
        """First signal: graceful shutdown. Second: stop without waiting. Third: kill
        the workers and exit.
        """
        self._stop_requests += 1
        if self._stop_requests > 2:
            self._kill_all()
            os._exit(1)

    def _handle_reload(self, _signal: int, _frame: FrameType | None) -> None:
        self._is_reload_requested = True

    def _step(self) -> None:
        """Wait for the next message, signal or timer, and handle it."""
        now = time.monotonic()
        times = [
            *(self._starts.values() if not self._stop_requests else ()),
            self._metrics.next_deadline,
            self._kill_at,
            self._reload_deadline,
            self._watchdog.next_check,
        ]
        timeout = min((max(0.0, at - now) for at in times if at is not None), default=None)
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self._wakeup:
                with suppress(BlockingIOError):
                    self._wakeup.recv(4096)
                continue
            worker: WorkerProcess = key.data
            # Neither call blocks, so the type of the event does not matter.
            worker.channel.flush()
            self._receive(worker)
        self._reap()
        if self._stop_requests > self._stops_sent:
            self._stop_workers()
        if (
            self._stops_sent
            and list(self._workers) == [ENGINE_NUMBER]
            and not self._is_engine_stopped
        ):
            # All front ends have exited. The engine process stops gracefully: it may
            # have KV blocks to write to disk.
            self._is_engine_stopped = True
            self._kill_at = time.monotonic() + ENGINE_STOP_TIME
            self._workers[ENGINE_NUMBER].channel.send(Stop())
        if self._is_reload_requested and self._has_served and not self._stop_requests:
            self._is_reload_requested = False
            self._begin_reload()
        self._handle_timers(time.monotonic())
        # Done last, since all of the above may leave unsent bytes in a channel.
        for worker in self._workers.values():
            events = selectors.EVENT_READ | (
                selectors.EVENT_WRITE if worker.channel.has_unsent else 0
            )
            key = self._selector.get_map().get(worker.channel.socket)
            if key is not None and key.events != events:
                self._selector.modify(worker.channel.socket, events, worker)

    def _handle_timers(self, now: float) -> None:
        for number, at in list(self._starts.items()):
            if at <= now and not self._stop_requests:
                del self._starts[number]
                self._start(number)
        self._metrics.finish_rounds(self._list_measured(), now)
        if self._kill_at is not None and now >= self._kill_at:
            log.error(
                "killing workers that have not shut down: %s", ", ".join(map(str, self._workers))
            )
            self._kill_all()
            self._kill_at = None
        if (
            self._reloading is not None
            and self._reload_deadline is not None
            and now >= self._reload_deadline
        ):
            name = self._workers[self._reloading].name
            log.error("%s is still reloading after %g s; the others go on", name, RELOAD_SECONDS)
            self._reloading = None
            self._reload_next()
        if now >= self._watchdog.next_check:
            if self._notifier.watchdog_interval is not None:
                self._notifier.notify_alive()
            self._replace_silent_workers(now)

    def _replace_silent_workers(self, now: float) -> None:
        """Kill the workers that do not respond: the event loop of a live process may
        hang.
        """
        silent = self._watchdog.find_silent(now)
        late = self._watchdog.pop_without_keys(now)
        if self._stop_requests:
            # Workers that shut down send no signs, and have a time limit.
            return
        for number in silent:
            log.error("%s does not respond and is killed", self._workers[number].name)
            # A process that waits for a disk dies later: it is named once.
            self._watchdog.forget(number)
            _kill(self._workers[number].pid)
        for number, has_others in late:
            name = self._workers[number].name
            self._key_rounds.note_late(number, name)
            if has_others:
                log.error("%s has not read the API keys again and is killed", name)
                _kill(self._workers[number].pid)
            else:
                log.error("%s has not read the API keys again", name)

    def _list_ready(self) -> list[int]:
        """Return the numbers of the workers that serve."""
        return [
            worker.number
            for worker in self._workers.values()
            if worker.is_ready and not worker.is_engine
        ]

    def _list_measured(self) -> list[int]:
        """Return the numbers of the workers that serve, and of the engine process if it
        serves.
        """
        return [worker.number for worker in self._workers.values() if worker.is_ready]

    def _start(self, number: int) -> None:
        """Fork a worker, or the engine process."""
        parent_end, child_end = socket.socketpair()
        # Both processes would write the buffered output.
        sys.stdout.flush()
        sys.stderr.flush()
        # Signals are blocked, so that the worker never runs the supervisor's handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            parent_end.close()
            self._run_worker(number, child_end, mask)
        child_end.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        worker = WorkerProcess(number, pid, WorkerChannel(parent_end), self._generation)
        self._workers[number] = worker
        self._selector.register(parent_end, selectors.EVENT_READ, worker)
        log.info("%s is process %d", worker.name, pid)

    def _run_worker(self, number: int, end: socket.socket, mask: Iterable[int]) -> NoReturn:
        """Run a new process until its exit. Of the supervisor's descriptors it keeps
        only `end` and listening sockets.

        end: its end of the socket pair to the supervisor.
        mask: the signal mask to restore.
        """
        code = 1
        name = ENGINE if number == ENGINE_NUMBER else number
        try:
            # The wakeup descriptor is shared with the supervisor: signals of this
            # process would wake the supervisor.
            signal.set_wakeup_fd(-1)
            self._selector.close()
            # A copy of the supervisor's end would keep the other workers from noticing
            # that the supervisor has died.
            for worker in self._workers.values():
                worker.channel.close()
            # A Python handler instead of SIG_IGN, which programs started by a worker
            # would inherit.
            for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(signal_number, _wake)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, _wake)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            name_worker(name)
            interval = self._watchdog.interval
            engine = None
            if self._engine_socket is not None and number == ENGINE_NUMBER:
                # Otherwise the port would stay bound after the supervisor and all
                # workers have died.
                for listener in self._listeners:
                    listener.close()
                assert self._shared is not None
                plan = EnginePlan(
                    self._shared,
                    self._settings,
                    self._engine_socket,
                    interval,
                    self._engine_changes,
                )
                code = serve_engine(plan, end)
            else:
                if self._engine_socket is not None:
                    assert self._hosted_model is not None
                    engine = EngineLink(
                        self._engine_socket.getsockname(), self._count, self._hosted_model
                    )
                    # Only the supervisor and the engine process hold this socket: if
                    # both have died, a front end's connection must be refused instead
                    # of waiting.
                    self._engine_socket.close()
                code = serve_as_worker(
                    WorkerPlan(
                        number,
                        self._configured,
                        self._settings,
                        self._secret,
                        self._listeners,
                        self._read_settings,
                        interval,
                        engine,
                        self._store_warning,
                    ),
                    end,
                )
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            log.exception("%s failed", describe_process(name))
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            # The interpreter's exit handlers belong to the supervisor.
            os._exit(code)

    def _receive(self, worker: WorkerProcess) -> None:
        reports, is_open = worker.channel.receive()
        if not is_open:
            # A closed socket stays readable: the selector would return at once until
            # the process is reaped.
            with suppress(KeyError):
                self._selector.unregister(worker.channel.socket)
        for report in reports:
            self._handle_report(worker, report)
        # Any message shows that the event loop runs, not only `Alive`.
        if worker.is_ready:
            self._watchdog.note_sign(worker.number, time.monotonic())

    def _handle_report(self, worker: WorkerProcess, report: AnyReport) -> None:
        match report:
            case Ready(greeting):
                self._handle_ready(worker, greeting)
            case EngineReady(model):
                worker.is_ready = True
                self._delays.note_ready(worker.number)
                # The first worker starts only now. After a restart of the engine
                # the workers are already running.
                if self._hosted_model is None:
                    self._starts[0] = 0.0
                self._hosted_model = model
            case EngineChanged(changes):
                self._engine_changes = changes
            case StartFailed(reason):
                worker.failure = reason
            case Reloaded(adopted):
                self._finish_reload(worker, adopted)
            case MergeRequest(id, own):
                # Bound to this channel: when the answer is ready, another worker
                # may have this number.
                answer = partial(_send_merged, worker.channel, id)
                self._metrics.start_round(
                    worker.number, own, self._list_measured(), time.monotonic(), answer
                )
            case MetricsReport(own):
                self._metrics.add_report(worker.number, own)
            case KeysRead(number, problem):
                self._watchdog.note_keys(worker.number, number)
                self._key_rounds.note_read(worker.number, number, problem)
            case KeysRequest(id):
                self._handle_keys_request(worker, id)
            case Alive():
                pass

    def _handle_keys_request(self, worker: WorkerProcess, id: int) -> None:
        """Let all workers read the keys again, and answer the one whose client has
        requested it.
        """
        self._send_read_keys()
        # Bound to this channel, as in `_handle_report`.
        self._key_rounds.start(self._list_ready(), partial(_send_keys_report, worker.channel, id))

    def _collect_metrics(self, number: int) -> None:
        self._workers[number].channel.send(CollectMetrics())

    def _handle_ready(self, worker: WorkerProcess, greeting: Sequence[str]) -> None:
        worker.is_ready = True
        self._delays.note_ready(worker.number)
        count = self._count
        if not self._has_served:
            self._has_served = True
            self._starts.update(dict.fromkeys(range(1, count), 0.0))
        self._greeting = greeting
        if len(self._list_ready()) == count:
            self._greet()
        # A worker that was started before the reload still has the previous settings.
        if worker.generation != self._generation:
            self._reload_queue.append(worker.number)
            self._reload_next()

    def _greet(self) -> None:
        """Tell the user and the service manager, once, that the server serves."""
        if not self._has_started:
            self._has_started = True
            for line in self._greeting:
                self._print_line(line)
            self._notifier.notify_ready()

    def _reap(self) -> None:
        """Handle the workers that have died, and schedule their replacements."""
        for worker in list(self._workers.values()):
            # Every process is polled: signals are not queued, and one SIGCHLD may stand
            # for several exits.
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            # Last messages, such as the reason of a failed start, may still be in the
            # socket.
            self._receive(worker)
            with suppress(KeyError):
                self._selector.unregister(worker.channel.socket)
            worker.channel.close()
            number = worker.number
            code = os.waitstatus_to_exitcode(status)
            del self._workers[number]
            self._metrics.end_worker(number)
            self._watchdog.forget(number)
            self._key_rounds.forget(number)
            self._reloading = None if self._reloading == number else self._reloading
            self._reload_queue = [item for item in self._reload_queue if item != number]
            if not self._stop_requests:
                exit_reason = (
                    f"killed by {signal.Signals(-code).name}"
                    if code < 0
                    else f"exited with status {code}"
                )
                reason = worker.failure or exit_reason
                delay = self._delays.note_death(number, has_served=worker.is_ready)
                has_given_up = self._delays.failures.get(number, 0) >= MAX_FIRST_FAILURES
                if not self._has_served and (worker.failure is not None or has_given_up):
                    self._failure = worker.failure or f"{worker.name} cannot start: {reason}"
                    # As after a second signal: do not wait for workers that start at
                    # the same time.
                    self._stop_requests = 2
                    continue
                if has_given_up and self._list_ready():
                    self._greet()
                if self._metrics.engine_restarts is not None and worker.is_engine:
                    self._metrics.engine_restarts += 1
                else:
                    self._metrics.restarts += 1
                self._starts[number] = time.monotonic() + delay
                log.error(
                    "%s (process %d) has died and is replaced%s: %s",
                    worker.name,
                    worker.pid,
                    f" in {delay:g} s" if delay else "",
                    reason,
                )
            # The others may have waited for this worker's reload.
            self._reload_next()

    def _stop_workers(self) -> None:
        """Pass a stop request on to the workers."""
        if not self._stops_sent:
            self._notifier.notify_stopping()
            self._kill_at = (
                time.monotonic()
                + max(self._settings.shutdown_timeout, self._settings.shutdown_grace)
                + STOP_MARGIN
            )
        self._stops_sent = self._stop_requests
        for worker in self._workers.values():
            if not worker.is_ready:
                # It serves no clients yet, and would react only after loading its
                # model.
                _kill(worker.pid)
            elif not worker.is_engine:
                worker.channel.send(Stop(is_forced=self._stop_requests > 1))

    def _begin_reload(self) -> None:
        """Reload the workers one after the other, so that the others serve meanwhile."""
        self._is_reloading = True
        if self._has_started:
            self._notifier.notify_reloading()
        self._generation += 1
        # First and to all at once: a key that was revoked must not depend on a worker
        # that does not respond.
        self._send_read_keys()
        self._new_settings = None
        if self._read_settings is not None:
            # Errors are ignored here: the workers log them.
            with suppress(SettingsError, OSError, ValueError):
                self._new_settings = self._read_settings()
        self._reload_queue = self._list_ready()
        self._reload_next()

    def _send_read_keys(self) -> None:
        """Let all workers read the keys again, also those that are still starting and
        have read the file before.

        Only those that serve must answer in time: a load may occupy the event loop of
        the others.
        """
        self._key_rounds.latest += 1
        for worker in self._workers.values():
            if not worker.is_engine:
                worker.channel.send(ReadKeys(self._key_rounds.latest))
        self._watchdog.expect_keys(self._list_ready(), self._key_rounds.latest, time.monotonic())

    def _reload_next(self) -> None:
        if self._reloading is not None:
            return
        self._reload_deadline = None
        if self._stop_requests:
            return
        if self._reload_queue:
            self._reloading = self._reload_queue.pop(0)
            self._reload_deadline = time.monotonic() + RELOAD_SECONDS
            worker = self._workers[self._reloading]
            worker.generation = self._generation
            worker.channel.send(Reload())
        elif self._is_reloading:
            self._is_reloading = False
            if self._has_started:
                self._notifier.notify_ready()

    def _finish_reload(self, worker: WorkerProcess, adopted: Sequence[str]) -> None:
        """Record the settings that the worker has adopted, for the workers that start
        from now on.
        """
        if self._new_settings is not None:
            changes = {name: getattr(self._new_settings, name) for name in adopted}
            self._configured = msgspec.structs.replace(self._configured, **changes)
            self._settings = msgspec.structs.replace(self._settings, **changes)
        if self._reloading == worker.number:
            self._reloading = None
        self._reload_next()

    def _kill_all(self) -> None:
        for worker in self._workers.values():
            _kill(worker.pid)


def _send_merged(channel: WorkerChannel, id: int, families: Sequence[MetricFamily]) -> None:
    channel.send(MergedMetrics(id, tuple(families)))


def _send_keys_report(channel: WorkerChannel, id: int, report: KeysReport) -> None:
    channel.send(KeysReply(id, report))


def _wake(_signal: int, _frame: FrameType | None) -> None:
    """Handle a signal by only waking the process."""


def _kill(pid: int) -> None:
    # The process id cannot have been reused: that requires a `waitpid` of the
    # supervisor.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
