"""Group commit: one thread writes queued commits to SQLite, several in one transaction."""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from .protocol import StoreUnavailable
from .sql import Steps

log = logging.getLogger(__name__)


T = TypeVar("T")


_MAX_GROUP = 256
"""Maximum number of commits in one transaction."""


def run_steps(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Run the statements of `steps` to completion and return its result."""
    try:
        statement, parameters = next(steps)
        while True:
            # SQLite treats `$1` as a named placeholder: Python 3.12.0 to 3.12.3 warn
            # when it is bound by position (CPython gh-117995).
            named = {str(number): value for number, value in enumerate(parameters, 1)}
            rows = connection.execute(statement, named).fetchall()
            statement, parameters = steps.send(rows)
    except StopIteration as stop:
        return stop.value


def build_unavailable_error(error: sqlite3.Error) -> StoreUnavailable:
    """Log the error, and build the client's. It includes SQLite's message, which names
    no path and no content.
    """
    log.error("the store failed: %s", error)
    return StoreUnavailable(f"The store is unavailable: {error}.")


class _WriteJob:
    """A write, and the future that gets its result when the transaction is on disk."""

    def __init__(
        self, work: Callable[[sqlite3.Connection], Any], future: asyncio.Future[Any]
    ) -> None:
        self._work = work
        self._future = future
        self._result: object = None
        self.error: Exception | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Run the job in a savepoint: an error of the job, other than sqlite3.Error,
        undoes this job alone.

        Raises:
            sqlite3.Error: the whole group must be rolled back.
        """
        connection.execute("SAVEPOINT job")
        try:
            self._result = self._work(connection)
        # After a disk error SQLite may already have rolled back the transaction,
        # including the savepoint.
        except sqlite3.Error:
            raise
        except Exception as error:
            self.error = error
            connection.execute("ROLLBACK TO job")
        connection.execute("RELEASE job")

    def resolve(self) -> None:
        # The request was cancelled during the write. The change stays stored.
        if self._future.done():
            return
        if self.error is not None:
            self._future.set_exception(self.error)
        else:
            self._future.set_result(self._result)


class GroupWriter:
    """The thread that owns the writing connection and groups queued writes. A disk
    error fails the whole group.

    acknowledge: called after a commit, before it is acknowledged; raises
        StoreUnavailable if it is not durable.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        loop: asyncio.AbstractEventLoop,
        acknowledge: Callable[[sqlite3.Connection], None],
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._acknowledge = acknowledge
        self._queue: queue.SimpleQueue[_WriteJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a transaction and return its result. On an error nothing is
        stored.

        Raises:
            StoreUnavailable: the disk or database failed. Errors of `work` propagate.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_WriteJob(work, future))
        return await future

    def stop(self) -> None:
        """Finish the queued jobs and stop the thread. Blocks."""
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            group = [self._queue.get()]
            # One fsync serves the whole group. On a slow disk groups get larger by
            # themselves, without a tuned delay.
            while len(group) < _MAX_GROUP and not self._queue.empty():
                group.append(self._queue.get())
            jobs = [job for job in group if job is not None]
            is_closing = len(jobs) < len(group)
            if jobs:
                self._write_group(jobs)
                # One wake-up of the event loop for the group, not one for each commit.
                self._loop.call_soon_threadsafe(_resolve_jobs, jobs)

    def _write_group(self, jobs: list[_WriteJob]) -> None:
        connection = self._connection
        try:
            # Take the write lock at once: a transaction that begins with a read fails
            # without waiting if another process writes first (SQLITE_BUSY_SNAPSHOT).
            connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                job.run(connection)
            connection.execute("COMMIT")
            # Afterwards: what was written to a removed file must not be acknowledged.
            self._acknowledge(connection)
        except (sqlite3.Error, StoreUnavailable) as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            # The jobs share the transaction, so they fail together.
            failure = build_unavailable_error(error) if isinstance(error, sqlite3.Error) else error
            for job in jobs:
                job.error = StoreUnavailable(failure.message)


def _resolve_jobs(jobs: list[_WriteJob]) -> None:
    for job in jobs:
        job.resolve()
