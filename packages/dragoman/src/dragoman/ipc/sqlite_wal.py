"""Switches a SQLite file to a write-ahead log while other processes do the same."""

from __future__ import annotations

import sqlite3
import time

_INTERVAL = 0.01
"""Seconds between attempts."""


def enter_wal(connection: sqlite3.Connection, timeout: float) -> str:
    """Switch to a write-ahead log and return the journal mode: `wal`, or another one
    where the file system cannot keep a log.

    Processes that create a file at once wait for each other here: SQLite's own timeout
    does not cover the lock that the switch needs
    (https://sqlite.org/c3ref/busy_handler.html).

    timeout: seconds to wait.

    Raises:
        sqlite3.OperationalError: the file is still locked after the timeout.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            # The low byte is the primary code, which extended ones such as
            # SQLITE_BUSY_RECOVERY share.
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() >= deadline:
                raise
        time.sleep(_INTERVAL)
