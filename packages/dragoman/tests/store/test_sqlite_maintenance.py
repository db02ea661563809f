"""Backup, check and statistics of a store, also while it is written."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dragoman.store import Key, Put, SqliteStore, StoreUnavailable
from dragoman.store.sqlite_maintenance import back_up, find_problems, measure


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


async def read_ids(path: Path, count: int) -> list[str]:
    """Return which of the first records are in the store."""
    store = SqliteStore(path)
    await store.open()
    try:
        ids = [str(number) for number in range(count)]
        return [id for id in ids if await store.get(Key("a", "response", id)) is not None]
    finally:
        await store.close()


async def test_backup_of_open_store_has_every_acknowledged_record(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    copy = path.with_name("copy.db")
    for number in range(20):
        await store.commit(Put(Key("a", "response", str(number)), 0, b"x" * 5000))
    # Nothing has been moved from the write-ahead log to the file.
    assert path.with_name("store.db-wal").stat().st_size > 100_000
    writes = [
        asyncio.create_task(store.commit(Put(Key("a", "response", str(number)), 0, b"y" * 5000)))
        for number in range(20, 60)
    ]
    await asyncio.to_thread(back_up, path, copy)
    await asyncio.gather(*writes)
    await store.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert not copy.with_name("copy.db-wal").exists()
    found = await read_ids(copy, 60)
    assert found[:20] == [str(number) for number in range(20)]
    assert len(await read_ids(path, 60)) == 60


def test_backup_of_killed_servers_store_reads_its_log(path: Path, tmp_path: Path) -> None:
    code = f"""
import asyncio, os, signal
from pathlib import Path
from dragoman.store import Key, Put, SqliteStore
async def main():
    store = SqliteStore(Path({str(path)!r}))
    await store.open()
    await store.commit(Put(Key("a", "response", "0"), 0, b"x"))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    back_up(path, tmp_path / "copy.db")
    assert asyncio.run(read_ids(tmp_path / "copy.db", 1)) == ["0"]


async def test_backup_never_overwrites(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.close()
    with pytest.raises(FileExistsError):
        back_up(path, path)


def write_text(path: Path) -> None:
    path.write_bytes(b"not a database, but longer than the header of one " * 10)


def write_other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (x)")


def write_newer_store(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def write_nothing(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (write_nothing, "There is no store at"),
        (write_text, "file is not a database"),
        (write_other_database, "is not a store of this server"),
        (write_newer_store, "newer version"),
    ],
)
def test_unusable_store_is_named_and_left_alone(
    path: Path, write: Callable[[Path], None], reason: str
) -> None:
    write(path)
    before = path.read_bytes() if path.exists() else None
    copy = path.with_name("copy.db")
    for act in (lambda: back_up(path, copy), lambda: find_problems(path), lambda: measure(path)):
        with pytest.raises(StoreUnavailable, match=reason) as raised:
            act()
        assert str(path) in raised.value.message
        copy.unlink(missing_ok=True)
    assert (path.read_bytes() if path.exists() else None) == before


async def fill(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    for number in range(200):
        await store.commit(Put(Key("a", "response", str(number)), number, b"x" * 1000))
    await store.commit(Put(Key("b", "file", "f"), 5, b"y"))
    await store.close()


def damage(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xaa" * 8192)


async def test_check_finds_damaged_page(path: Path) -> None:
    await fill(path)
    assert find_problems(path) == []
    damage(path)
    try:
        problems = find_problems(path)
    except StoreUnavailable as error:
        problems = [error.message]
    assert problems
    with pytest.raises(StoreUnavailable, match=r"damaged|cannot be read"):
        back_up(path, path.with_name("copy.db"))


def test_measure_counts_records_by_kind(path: Path) -> None:
    asyncio.run(fill(path))
    stats = measure(path)
    assert stats.schema == 2
    assert stats.file_size == path.stat().st_size
    kinds = {kind.kind: kind for kind in stats.kinds}
    assert (kinds["response"].records, kinds["response"].owners) == (200, 1)
    assert kinds["response"].created == (0, 199)
    assert kinds["response"].size >= 200_000
    assert kinds["file"].records == 1
