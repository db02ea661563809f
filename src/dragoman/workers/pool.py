"""Runs calls in worker processes that are killed when they exceed a limit or no client waits for them any more."""

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
from .child import FAILED, OUT_OF_MEMORY, Setup, read_frame, write_frame

log = logging.getLogger(__name__)


class WorkerLimits(Struct, frozen=True):
    """seconds: CPU time of one call. memory: bytes that it may allocate. processes: that run at the same time.

    queued: calls that may wait for a process; others are rejected with 503. clock_factor: how much longer than its CPU
    time a call may take by the clock, on a loaded machine.
    """

    seconds: float = 2.0
    memory: int = 512 * 1024 * 1024
    processes: int = max(1, min(4, os.cpu_count() or 1))
    queued: int = 256
    clock_factor: float = 5.0


class LimitExceeded(Exception):
    """The call was killed: it took more CPU time or memory than it may."""

    def __init__(self, resource: Literal["time", "memory"]) -> None:
        super().__init__(f"a worker took too much {resource}")
        self.resource: Literal["time", "memory"] = resource


class WorkerPool:
    """Starts processes when the first call comes, and keeps them for the next ones.

    module: run as `python -m`, it calls `child.serve`. setup: makes what its `start` is given.
    """

    def __init__(
        self, module: str, limits: WorkerLimits | None = None, setup: Callable[[], bytes] = lambda: b""
    ) -> None:
        self.limits = limits or WorkerLimits()
        self._module, self._setup = module, setup
        self._limiter = anyio.CapacityLimiter(self.limits.processes)
        self._running: dict[bytes, _Shared] = {}
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._lock = Lock()
        self._generation = 0

    def __del__(self) -> None:
        for worker in self._idle:
            worker.close()

    async def run(self, call: bytes) -> bytes:
        """The reply. Equal calls at the same time are one, killed when the last one that waits for it is cancelled.

        Raises LimitExceeded, Overloaded where too many wait or the pool is closed meanwhile, EngineError.
        """
        shared = self._running.get(call)
        if shared is None:
            if len(self._running) >= self.limits.processes + self.limits.queued:
                raise Overloaded("Too many requests wait for a worker process; retry later.")
            shared = self._running[call] = _Shared(asyncio.create_task(self._run(call)))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        except asyncio.CancelledError:
            if shared.is_closed:
                raise Overloaded("The server is stopping; try again.") from None
            raise
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                shared.task.cancel()
                if self._running.get(call) is shared:
                    del self._running[call]

    def close(self) -> None:
        """Kill all processes and end the calls that run or wait. A later call starts a process again."""
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, []
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
        """Of the processes that have been started and not ended."""
        with self._lock:
            return [worker.pid for worker in (*self._idle, *self._busy)]

    async def _run(self, call: bytes) -> bytes:
        attempt = _Attempt()
        try:
            return await anyio.to_thread.run_sync(self._call, call, attempt, limiter=self._limiter)
        except asyncio.CancelledError:
            attempt.cancel()
            raise

    def _call(self, call: bytes, attempt: _Attempt) -> bytes:
        """In a thread."""
        with self._worker() as worker, attempt.killing(worker):
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
        """One that is idle, or a new one; kept for the next call unless something went wrong."""
        with self._lock:
            generation = self._generation
            worker = self._idle.pop() if self._idle else None
        if worker is not None and not worker.is_alive:
            worker.close()
            worker = None
        worker = worker or _Worker(self._module, self._setup, self.limits)
        with self._lock:
            self._busy.add(worker)
            if generation != self._generation:
                worker.kill()
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        finally:
            with self._lock:
                self._busy.discard(worker)
                is_kept = worker.is_alive and generation == self._generation
                if is_kept:
                    self._idle.append(worker)
            if not is_kept:
                worker.close()


class _Shared:
    """A call and how many wait for it."""

    def __init__(self, task: asyncio.Task[bytes]) -> None:
        self.task = task
        self.waiting = 0
        self.is_closed = False
        # Where the last one left at the very end, its error is no one's.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


class _Attempt:
    """Connects the task that waits with the process that works, so that cancelling the one kills the other."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._is_cancelled = False
        self._lock = Lock()

    @contextmanager
    def killing(self, worker: _Worker) -> Generator[None]:
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
    """One process. Everything but `kill` blocks."""

    def __init__(self, module: str, setup: Callable[[], bytes], limits: WorkerLimits) -> None:
        self._setup, self._limits = setup, limits
        self._is_ready = self._is_killed = self._has_timed_out = False
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The keys of the server are none of its business.
            env={name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")},
            # An interrupt from the keyboard is for the server.
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
        """Also from another thread: the one that waits for a reply gets none."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        """Reaps a process that was killed or has ended."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # It may hold what the process has not read.
                pipe.close()

    def _exchange(self, frame: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            write_frame(self._process.stdin, frame)
            reply = read_frame(self._process.stdout)
        except BrokenPipeError:
            reply = None
        if reply is None:
            raise self._reason()
        if reply[:1] == FAILED:
            log.error("a worker process failed:\n%s", reply[1:].decode("utf-8", "replace"))
            raise EngineError("A worker process failed.")
        return reply[1:]

    def _reason(self) -> Exception:
        """Why it ended."""
        status = self._process.wait()
        if self._has_timed_out or (hasattr(signal, "SIGPROF") and status == -signal.SIGPROF):
            return LimitExceeded("time")
        if self._is_ready and (status == OUT_OF_MEMORY or status < 0):
            return LimitExceeded("memory")
        return EngineError("A worker process ended unexpectedly.")
