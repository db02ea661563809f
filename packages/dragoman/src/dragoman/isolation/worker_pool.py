"""Runs calls in worker processes. A process is killed if its call exceeds a limit, or
no client waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Literal

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from ..core.errors import EngineError, Overloaded
from ..ipc.frames import read_pipe_frame, write_pipe_frame
from .fair_limiter import FairLimiter, Place
from .worker_loop import FAILED, OUT_OF_MEMORY, Setup

log = logging.getLogger(__name__)


class WorkerLimits(Struct, frozen=True):
    """The limits of a worker pool.

    seconds: CPU time of one call.
    memory: bytes that one call may allocate.
    processes: maximum processes that run at the same time.
    queued: maximum calls that wait for a process; further ones are rejected with 503.
    clock_factor: limit of wall-clock time, as a multiple of `seconds`: on a loaded
        machine a call takes longer.
    """

    seconds: float = 2.0
    memory: int = 512 * 1024 * 1024
    processes: int = max(1, min(4, os.cpu_count() or 1))
    queued: int = 256
    clock_factor: float = 5.0


class LimitExceeded(Exception):
    """A call was killed because it exceeded its limit of time or memory."""

    def __init__(self, resource: Literal["time", "memory"]) -> None:
        super().__init__(f"a worker exceeded its limit of {resource}")
        self.resource: Literal["time", "memory"] = resource


class WorkerPool:
    """A pool of worker processes, which start on demand and are reused. Owners of calls
    take turns.

    module: module of the worker, run by `python -m`; it must call `worker_loop.serve`.
    setup: builds the data for the module's `start`.
    """

    def __init__(
        self,
        module: str,
        limits: WorkerLimits | None = None,
        setup: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self.limits = limits or WorkerLimits()
        self._module = module
        self._setup = setup
        self._places = FairLimiter(self.limits.processes)
        # Every place has its thread.
        self._threads = anyio.CapacityLimiter(self.limits.processes)
        self._running: dict[bytes, _Shared] = {}
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._lock = Lock()
        self._generation = 0

    def __del__(self) -> None:
        for worker in self._idle:
            worker.close()

    async def run(self, call: bytes, owner: str = "") -> bytes:
        """Run a call and return the reply.

        Equal concurrent calls share one run, which is killed when its last waiter is
        cancelled.

        owner: whose turn the call waits for; calls without one share a queue.

        Raises:
            LimitExceeded: the call exceeded a limit.
            Overloaded: the queue or the owner's share of it is full, or the pool was
                closed during the call.
            EngineError: the worker failed.
        """
        shared = self._running.get(call)
        if shared is None:
            self._check_queue(owner)
            place = self._places.enter(owner)
            task = asyncio.create_task(self._run(call, place))
            shared = self._running[call] = _Shared(task, owner, place)
        elif not shared.task.done():
            # Its first owner may have a long queue. A place that was left must not be
            # taken again: nobody would leave it.
            shared.place.join(owner)
        shared.waiting += 1
        try:
            # Shielded: a cancelled waiter must not end the run for the others.
            return await asyncio.shield(shared.task)
        except asyncio.CancelledError:
            # `close` cancelled the shared task, not this one: callers would treat a
            # CancelledError as a disconnect.
            if shared.is_closed:
                raise Overloaded("The server is shutting down; retry later.") from None
            raise
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()
                if self._running.get(call) is shared:
                    del self._running[call]

    def close(self) -> None:
        """Kill all processes, and fail running and waiting calls. A later call starts a
        new process.
        """
        with self._lock:
            self._generation += 1
            idle = self._idle
            self._idle = []
            busy = list(self._busy)
        for worker in busy:
            worker.kill()
        for worker in idle:
            worker.close()
        for shared in self._running.values():
            shared.is_closed = True
            shared.task.cancel()

    @property
    def pids(self) -> list[int]:
        """Process ids of the idle and busy workers."""
        with self._lock:
            return [worker.pid for worker in (*self._idle, *self._busy)]

    def _check_queue(self, owner: str) -> None:
        """Check that the queue has space: an owner may fill as much of it as it leaves
        free, so that the next one finds some.
        """
        free = self.limits.processes + self.limits.queued - len(self._running)
        held = sum(shared.owner == owner for shared in self._running.values()) if owner else 0
        if held >= free:
            raise Overloaded("Too many requests wait for a worker process; retry later.")

    async def _run(self, call: bytes, place: Place) -> bytes:
        await place.wait()
        attempt = _Attempt()
        try:
            return await anyio.to_thread.run_sync(self._call, call, attempt, limiter=self._threads)
        except asyncio.CancelledError:
            # The thread cannot be cancelled, but returns when its process has been
            # killed.
            attempt.cancel()
            raise

    def _call(self, call: bytes, attempt: _Attempt) -> bytes:
        """Run the call in a worker. Blocks; runs in a thread."""
        with self._worker() as worker, attempt.kill_on_cancel(worker):
            # Before the timer starts: the worker's imports are not part of the call.
            worker.wait_until_ready()
            timer = Timer(self.limits.clock_factor * self.limits.seconds, worker.time_out)
            timer.daemon = True
            timer.start()
            try:
                return worker.call(call)
            finally:
                timer.cancel()

    @contextmanager
    def _worker(self) -> Generator[_Worker]:
        """Yield an idle worker or a new one, which is reused unless an exception is
        raised.
        """
        with self._lock:
            generation = self._generation
            worker = self._idle.pop() if self._idle else None
        # An idle process may have ended too, for example killed by the kernel's OOM
        # killer.
        if worker is not None and not worker.is_alive:
            worker.close()
            worker = None
        worker = worker or _Worker(self._module, self._setup, self.limits)
        with self._lock:
            self._busy.add(worker)
            # `close` was called while the process started, so it did not find the
            # process in either collection.
            if generation != self._generation:
                worker.kill()
        try:
            yield worker
        except BaseException:
            # Its pipes may contain a partial frame, or the reply to this call, which
            # the next call would read.
            worker.kill()
            raise
        finally:
            with self._lock:
                self._busy.discard(worker)
                is_reusable = worker.is_alive and generation == self._generation
                if is_reusable:
                    self._idle.append(worker)
            if not is_reusable:
                worker.close()


class _Shared:
    """A run that equal calls share, with the number of its waiters.

    owner: of the first call.
    """

    def __init__(self, task: asyncio.Task[bytes], owner: str, place: Place) -> None:
        self.task = task
        self.owner = owner
        self.place = place
        self.waiting = 0
        self.is_closed = False
        # Retrieve the exception: the last waiter may have left before it was set.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Not in the task, which runs no code if it is cancelled before its first step.
        task.add_done_callback(lambda _: place.leave())


class _Attempt:
    """Connects a task with its worker process, so that cancelling the task kills the
    process.
    """

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._is_cancelled = False
        self._lock = Lock()

    @contextmanager
    def kill_on_cancel(self, worker: _Worker) -> Generator[None]:
        with self._lock:
            self._worker = worker
            if self._is_cancelled:
                worker.kill()
        try:
            yield
        finally:
            with self._lock:
                self._worker = None

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._worker is not None:
                self._worker.kill()


class _Worker:
    """One worker process. Every method but `kill` blocks."""

    def __init__(self, module: str, setup: Callable[[], bytes], limits: WorkerLimits) -> None:
        self._setup = setup
        self._limits = limits
        self._is_ready = self._is_killed = self._has_timed_out = False
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Workers get no environment variables that may hold the server's API keys.
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith("DRAGOMAN_")
            },
            # Ctrl-C is handled by the server, not by its workers.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self._is_killed and self._process.poll() is None

    def wait_until_ready(self) -> None:
        if not self._is_ready:
            setup = Setup(self._limits.seconds, self._limits.memory, self._setup())
            self._exchange(msgspec.msgpack.encode(setup))
            self._is_ready = True

    def call(self, call: bytes) -> bytes:
        return self._exchange(call)

    def time_out(self) -> None:
        self._has_timed_out = True
        self.kill()

    def kill(self) -> None:
        """Kill the process. Thread-safe; a thread that waits for a reply gets none."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        """Reap a process that was killed or has exited."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(
                OSError
            ):  # Closing flushes the buffer, which may fail as the process has exited.
                pipe.close()

    def _exchange(self, frame: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            write_pipe_frame(self._process.stdin, frame)
            reply = read_pipe_frame(self._process.stdout)
        except BrokenPipeError:
            reply = None
        if reply is None:
            status = self._process.wait()
            # The child's CPU timer ends it with SIGPROF, which it does not handle.
            if self._has_timed_out or (hasattr(signal, "SIGPROF") and status == -signal.SIGPROF):
                raise LimitExceeded("time")
            # A Rust library aborts when an allocation fails. Until the process is ready
            # there is no limit.
            if self._is_ready and (status == OUT_OF_MEMORY or status < 0):
                raise LimitExceeded("memory")
            raise EngineError("A worker process ended unexpectedly.")
        if reply[:1] == FAILED:
            log.error("a worker process failed:\n%s", reply[1:].decode("utf-8", "replace"))
            raise EngineError("A worker process failed.")
        return reply[1:]
