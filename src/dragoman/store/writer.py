"""The one thread that writes to a SQLite file: what has gathered while it was at the disk goes there together."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .base import StoreUnavailable
from .sql import Steps

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_GROUP = 256
"""Most commits that share one write to the disk."""


def run_steps(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Answer the questions of `steps` until it is done."""
    try:
        statement, parameters = next(steps)
        while True:
            # By name, `$1` of SQLite's own syntax: Python 3.12.0 to 3.12.3 warn when a numbered placeholder is bound by
            # position (CPython gh-117995).
            named = {str(number): value for number, value in enumerate(parameters, 1)}
            rows = connection.execute(statement, named).fetchall()
            statement, parameters = steps.send(rows)
    except StopIteration as stop:
        return stop.value


def build_unavailable_error(error: sqlite3.Error) -> StoreUnavailable:
    """The log gets SQLite's own word; it names no path and no content, so that the client may have it too."""
    log.error("the store failed: %s", error)
    return StoreUnavailable(f"The store is unavailable: {error}.")


class _WriteJob:
    """A write and what became of it, which is told once it is on the disk."""

    def __init__(self, work: Callable[[sqlite3.Connection], Any], future: asyncio.Future[Any]) -> None:
        self._work, self._future = work, future
        self._result: object = None
        self.error: Exception | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Raises sqlite3.Error, which ends the whole group; any other error undoes this job alone."""
        connection.execute("SAVEPOINT job")
        try:
            self._result = self._work(connection)
        except sqlite3.Error:
            raise
        except Exception as error:
            self.error = error
            connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")

    def resolve(self) -> None:
        if self._future.done():
            return
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self._result)


class GroupWriter:
    """Owns the connection. Errors of the disk are those of every commit of the group: none of them was kept."""

    def __init__(self, connection: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._loop = connection, loop
        self._queue: queue.SimpleQueue[_WriteJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns. Raises what it raises, or StoreUnavailable; nothing of it is kept then."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_WriteJob(work, future))
        return await future

    def stop(self) -> None:
        """Finish what is queued, and end. Blocks."""
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            group = [self._queue.get()]
            while len(group) < _MAX_GROUP and not self._queue.empty():
                group.append(self._queue.get())
            jobs = [job for job in group if job is not None]
            is_closing = len(jobs) < len(group)
            if jobs:
                self._write_group(jobs)
                self._loop.call_soon_threadsafe(_resolve_jobs, jobs)

    def _write_group(self, jobs: list[_WriteJob]) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job.run(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            failure = build_unavailable_error(error)
            for job in jobs:
                job.error = StoreUnavailable(failure.message)


def _resolve_jobs(jobs: list[_WriteJob]) -> None:
    for job in jobs:
        job.resolve()
