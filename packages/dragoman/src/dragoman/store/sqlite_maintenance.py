"""Backup, check and statistics of a SQLite store, also while servers use it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import sql
from .protocol import StoreUnavailable

BUSY_SECONDS = 30.0
"""Time to wait for a process that writes."""
MAX_PROBLEMS = 20
"""Maximum number of problems that a check lists."""


@dataclass(frozen=True, slots=True)
class KindStats:
    """The records of one kind. created: Unix times of the first and the last one."""

    kind: str
    records: int
    size: int
    owners: int
    created: tuple[float, float]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The content of a store.

    schema: version of its schema.
    file_size: bytes of the file; `wal_size` is the write-ahead log beside it.
    free_size: bytes of the file that hold nothing.
    """

    schema: int
    file_size: int
    wal_size: int
    free_size: int
    kinds: Sequence[KindStats]


def back_up(path: Path, target: Path) -> None:
    """Copy the store, as it is at one moment, to a new file with mode 0600. Servers go
    on reading and writing.

    Raises:
        StoreUnavailable: the store cannot be read, or is damaged.
        OSError: the target cannot be written.
    """
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with _open_store(path) as source, closing(sqlite3.connect(target)) as copy:
        # In one step: of several, each would begin anew after a write of the server.
        source.backup(copy)
        # The copy has the journal mode of the source, and a WAL beside it would be
        # forgotten when the file is moved.
        copy.execute("PRAGMA journal_mode = DELETE")
    # Closed before: the content must be in the file.
    descriptor = os.open(target, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    problems = find_problems(target)
    if problems:
        raise StoreUnavailable(f"The store {path} is damaged: {problems[0]}.")


def find_problems(path: Path) -> Sequence[str]:
    """Read the whole store, and return what is wrong with it.

    Raises:
        StoreUnavailable: it cannot be read, or is no store.
    """
    with _open_store(path) as connection:
        rows = connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})").fetchall()
        problems = [str(text) for (text,) in rows if text != "ok"]
        if not problems:
            lost = connection.execute("PRAGMA foreign_key_check").fetchmany(MAX_PROBLEMS)
            problems = [f"row {row[1]} of {row[0]} belongs to no record" for row in lost]
        return problems


def measure(path: Path) -> StoreStats:
    """Count what is in the store. Raises StoreUnavailable."""
    with _open_store(path) as connection:
        rows = connection.execute(
            "SELECT kind, count(*), sum(nbytes), count(DISTINCT owner), min(created), max(created) "
            "FROM dragoman_records GROUP BY kind ORDER BY sum(nbytes) DESC"
        ).fetchall()
        page_size: int = connection.execute("PRAGMA page_size").fetchone()[0]
        free_pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
        return StoreStats(
            _read_schema(connection),
            path.stat().st_size,
            _measure_file(path.with_name(f"{path.name}-wal")),
            page_size * free_pages,
            [
                KindStats(kind, records, size, owners, (first, last))
                for kind, records, size, owners, first, last in rows
            ],
        )


@contextmanager
def _open_store(path: Path) -> Generator[sqlite3.Connection]:
    """Open an existing store for reading.

    Raises:
        StoreUnavailable: it does not exist, is no store, or is written by a newer
            version.
    """
    if not path.is_file():
        raise StoreUnavailable(f"There is no store at {path}.")
    try:
        # Not `mode=ro`: a WAL that a killed server has left can then not be read.
        uri = f"{path.absolute().as_uri()}?mode=rw"
        with closing(
            sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA query_only = ON")
            schema = _read_schema(connection)
            if schema > sql.SCHEMA_VERSION:
                raise StoreUnavailable(
                    f"The store {path} was created by a newer version of this server (schema "
                    f"{schema}; this one supports {sql.SCHEMA_VERSION})."
                )
            if (
                schema == 0
                or not connection.execute(
                    "SELECT 1 FROM sqlite_schema WHERE name = 'dragoman_records'"
                ).fetchone()
            ):
                raise StoreUnavailable(f"{path} is not a store of this server.")
            yield connection
    except sqlite3.Error as error:
        raise StoreUnavailable(f"The store {path} cannot be read: {error}.") from error


def _read_schema(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]


def _measure_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
