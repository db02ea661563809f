"""The store in one SQLite file, the default: one writer thread with group commit, readers beside it.

Several server processes can share the file. A commit is acknowledged after it is on the disk, never before.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from . import sql
from .base import Bounds, Change, Record, StoreUnavailable
from .reads import SqlReads
from .runs import RunLock, is_alive
from .writer import GroupWriter, drive, unavailable

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL"]

_OLDEST_SQLITE = (3, 35, 0)
_PAGES_GIVEN_BACK = 1024
"""Free pages that a cleaning takes off the file at most: a write should not wait long for it."""


class SqliteStore(SqlReads):
    """synchronous: FULL survives a power cut; NORMAL survives the process only, and is faster.

    busy: seconds to wait for another process that is writing. now: Unix seconds.
    """

    def __init__(
        self,
        path: Path,
        bounds: Bounds | None = None,
        *,
        synchronous: Synchronous = "FULL",
        busy: float = 10.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(bounds or Bounds(), now)
        self._path = path
        self._synchronous, self._busy = synchronous, busy
        self._run = "run_" + secrets.token_hex(16)
        self._writer: GroupWriter | None = None

    @property
    def run(self) -> str:
        return self._run

    async def open(self) -> None:
        """Make the file where it is not there. Raises StoreUnavailable, also for the file of a newer version."""
        loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="store-reader")
        self._reading = threading.local()
        self._connections: list[sqlite3.Connection] = []
        try:
            writing = await self._in_thread(self._prepare)
        except StoreUnavailable:
            self._readers.shutdown(wait=False)
            raise
        self._writer = GroupWriter(writing, loop)

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        touches = self._taken_touches()
        # Only when something was last read would be lost.
        with suppress(StoreUnavailable):
            await writer.write(lambda connection: drive(connection, sql.touch(touches)))
        await asyncio.to_thread(writer.stop)
        await asyncio.to_thread(self._readers.shutdown)
        for connection in self._connections:
            connection.close()
        self._lock.release()

    async def commit(self, *changes: Change) -> None:
        steps = sql.commit(changes, self._bounds, self._now())
        await self._write(lambda connection: drive(connection, steps))

    async def lapsed(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        found: list[Record] = []
        for run in await self._read(sql.runs()):
            if len(found) < limit and not await self._in_thread(lambda run=run: is_alive(self._runs, run)):
                found += await self._read(sql.of_run(run, kind, limit - len(found)))
        return tuple(found)

    async def clean(self, limit: int = 256) -> int:
        now, touches = self._now(), self._taken_touches()

        def write(connection: sqlite3.Connection) -> int:
            drive(connection, sql.touch(touches))
            gone = drive(connection, sql.clean(limit, self._bounds, now))
            _shrink(connection)
            return gone

        return await self._write(write)

    @property
    def _runs(self) -> Path:
        return self._path.with_name(self._path.name + "-runs")

    def _prepare(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            raise StoreUnavailable(f"The store needs SQLite 3.35 or newer; this Python has {sqlite3.sqlite_version}.")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Made before SQLite opens it, for it would take the process's umask; its side files take this mode over.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._lock = RunLock(self._runs, self._run)
        except OSError as error:
            raise StoreUnavailable(f"The store {self._path} cannot be opened: {error.strerror}.") from error
        try:
            return self._migrated()
        except BaseException:
            self._lock.release()
            raise

    def _migrated(self) -> sqlite3.Connection:
        connection = self._connect()
        try:
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            # Only possible before the first table is made.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailable(f"The store {self._path} is on a file system where SQLite cannot keep a WAL.")
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > sql.SCHEMA_VERSION:
            raise StoreUnavailable(
                f"The store {self._path} was created by a newer version of this server (schema {version}; "
                f"this one supports {sql.SCHEMA_VERSION})."
            )
        for statement in sql.migrations(version, postgres=False):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {sql.SCHEMA_VERSION:d}")
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._busy, isolation_level=None, check_same_thread=False)
        try:
            # The first statement reads the file: it fails here if that is no database.
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = FAST")
        except BaseException:
            connection.close()
            raise
        return connection

    async def _read(self, steps: sql.Steps[T]) -> T:
        return await self._in_thread(lambda: drive(self._reader(), steps))

    def _reader(self) -> sqlite3.Connection:
        """This thread's own."""
        connection: sqlite3.Connection | None = self._reading.__dict__.get("connection")
        if connection is None:
            connection = self._connect()
            self._connections.append(connection)
            connection.execute("PRAGMA query_only = ON")
            self._reading.connection = connection
        return connection

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._readers, work)
        except sqlite3.Error as error:
            raise unavailable(error) from error

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise StoreUnavailable("The store is closed.")
        return await self._writer.write(work)


def _shrink(connection: sqlite3.Connection) -> None:
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    for _ in range(min(free, _PAGES_GIVEN_BACK)):
        # Python's driver makes one step of it, whatever number it is given: one page.
        connection.execute("PRAGMA incremental_vacuum")
