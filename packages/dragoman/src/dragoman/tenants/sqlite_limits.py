"""Shared limits in a SQLite file, for the processes of one machine.

Nothing in the file must survive a crash of the machine, so a commit does not wait for
the disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .apply_batch import Holder, KeyState, apply_batch
from .counters import Counter
from .limits_store import Batch, BatchResult, LimitsStoreUnavailable

BUSY_TIMEOUT = 1.0
"""Seconds to wait for other processes that are writing."""
RETENTION = 70 * 86400
"""Seconds after which the counters of an unused key are deleted: longer than a month,
the longest period of a limit.
"""
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
        _enter_wal(connection)
        # WAL with NORMAL syncs only at checkpoints: a power failure can lose the last
        # commits, a killed process cannot.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(
            "DELETE FROM limits_of_keys WHERE touched < ?", (self._now() - RETENTION * 1_000_000,)
        )
        connection.execute("COMMIT")

    def _apply(self, batch: Batch) -> BatchResult:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            now = self._now()
            keys = batch.list_keys()
            states = {key: KeyState() for key in keys}
            places = ", ".join("?" * len(keys))
            query = f"SELECT key, state FROM limits_of_keys WHERE key IN ({places})"
            for key, text in connection.execute(query, keys):
                counters, states[key].places = json.loads(text)
                states[key].counters = {
                    name: Counter(updated, used, until)
                    for name, (used, updated, until) in counters.items()
                }
            rows = connection.execute("SELECT holder, expires, seq FROM holders")
            holders = {id: Holder(expires, seq) for id, expires, seq in rows}
            before = set(holders)
            result = apply_batch(batch, now, states.__getitem__, holders)
            rows_of_keys: list[tuple[str, str, int]] = []
            for key, state in states.items():
                numbers = {
                    name: (count.used, count.updated, count.until)
                    for name, count in state.counters.items()
                }
                # Not msgspec: the integers can exceed 64 bits.
                rows_of_keys.append((key, json.dumps([numbers, state.places]), now))
            connection.executemany(
                "INSERT OR REPLACE INTO limits_of_keys VALUES (?, ?, ?)", rows_of_keys
            )
            changed = {batch.holder, *(batch.previous or ())[:1]} & set(holders)
            connection.executemany(
                "INSERT OR REPLACE INTO holders VALUES (?, ?, ?)",
                [(id, holders[id].expires, holders[id].seq) for id in changed],
            )
            connection.executemany(
                "DELETE FROM holders WHERE holder = ?", [(id,) for id in before - set(holders)]
            )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result


def _enter_wal(connection: sqlite3.Connection) -> None:
    """Keep a write-ahead log. Processes that create the file at once wait for each other
    here, as SQLite's own timeout does not cover this lock.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
