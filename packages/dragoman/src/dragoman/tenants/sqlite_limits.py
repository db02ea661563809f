"""Shared limits in a SQLite file, for the processes of one machine.

Nothing in the file must survive a crash of the machine, so a commit does not wait for
the disk.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..ipc.sqlite_wal import enter_wal
from .apply_batch import Holder, apply_batch, decode_states, encode_state
from .limits_store import (
    HOLDER_RETENTION,
    STATE_RETENTION,
    Batch,
    BatchResult,
    BatchStatus,
    LimitsStoreUnavailable,
)

BUSY_TIMEOUT = 1.0
"""Seconds to wait for other processes that are writing."""
_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS limits_of_keys (key TEXT PRIMARY KEY, state TEXT NOT NULL, "
    "touched INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS holders (holder TEXT PRIMARY KEY, expires INTEGER NOT NULL, seq "
    "INTEGER NOT NULL)",
)


def read_wall_clock() -> int:
    """Return microseconds of Unix time."""
    return time.time_ns() // 1000


class SqliteLimits:
    """A `LimitsStore` in a SQLite file. One thread does all the work.

    now: returns microseconds of Unix time.
    """

    def __init__(self, path: Path, now: Callable[[], int] = read_wall_clock) -> None:
        self._path = path
        self._now = now
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="limits")
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._prepare)
        except (sqlite3.Error, OSError) as error:
            await self.close()
            raise LimitsStoreUnavailable(
                f"The file {self._path} cannot be opened: {error}."
            ) from error

    async def close(self) -> None:
        thread = self._thread
        self._thread = None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def apply(self, batch: Batch) -> BatchResult:
        if self._thread is None:
            raise LimitsStoreUnavailable("The limits store is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._apply, batch
            )
        except sqlite3.Error as error:
            raise LimitsStoreUnavailable(f"{self._path}: {error}.") from error

    def _prepare(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Created before SQLite opens it, since SQLite applies the umask.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        self._connection = connection
        enter_wal(connection, BUSY_TIMEOUT)
        # WAL with NORMAL syncs only at checkpoints: a power failure can lose the last
        # commits, a killed process cannot.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(
            "DELETE FROM limits_of_keys WHERE touched < ?", (self._now() - STATE_RETENTION,)
        )
        connection.execute("COMMIT")

    def _apply(self, batch: Batch) -> BatchResult:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = _apply_in_transaction(connection, batch, self._now())
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result


def _apply_in_transaction(connection: sqlite3.Connection, batch: Batch, now: int) -> BatchResult:
    keys = batch.list_keys()
    marks = ", ".join("?" * len(keys))
    query = f"SELECT key, state FROM limits_of_keys WHERE key IN ({marks})"
    states = decode_states(keys, dict(connection.execute(query, keys)))
    rows = connection.execute("SELECT holder, expires, seq FROM holders")
    holders = {id: Holder(expires, seq) for id, expires, seq in rows}
    result = apply_batch(batch, now, states, holders)
    if result.status is not BatchStatus.APPLIED:
        return result
    connection.executemany(
        "INSERT OR REPLACE INTO limits_of_keys VALUES (?, ?, ?)",
        [(key, encode_state(state), now) for key, state in states.items()],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO holders VALUES (?, ?, ?)",
        [(id, holders[id].expires, holders[id].seq) for id in batch.list_holders()],
    )
    if batch.seq == 1:
        connection.execute("DELETE FROM holders WHERE expires <= ?", (now - HOLDER_RETENTION,))
    return result
