"""The switch to a write-ahead log waits for other writers, which SQLite itself does not
do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.ipc.sqlite_wal import enter_wal


@pytest.fixture
def connections(tmp_path: Path) -> Iterator[list[sqlite3.Connection]]:
    """Yield two connections to a new file, the first of which is writing."""
    path = tmp_path / "x.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        writer.execute("BEGIN IMMEDIATE")
        yield [writer, other]


def test_enter_wal_waits_for_other_writer(connections: list[sqlite3.Connection]):
    writer, other = connections
    attempts: list[str] = []

    def end_transaction_at_second_attempt(statement: str) -> None:
        attempts.append(statement)
        if len(attempts) == 2:
            writer.execute("COMMIT")

    other.set_trace_callback(end_transaction_at_second_attempt)
    assert enter_wal(other, timeout=60) == "wal"
    assert len(attempts) == 2


def test_enter_wal_file_still_locked_raises(connections: list[sqlite3.Connection]):
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        enter_wal(connections[1], timeout=0)
