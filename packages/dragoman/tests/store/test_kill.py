"""A process that is killed while it writes: every acknowledged write is stored, and the
file is intact.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dragoman.store import Replace, SqliteStore

from .backends import key, put

WRITER = """
import asyncio, sys
from pathlib import Path
from dragoman.store import Append, Item, Key, Put, SqliteStore

async def work(store, name):
    number = 0
    while True:
        key = Key("me", "response", f"{name}-{number}")
        await store.commit(Put(key, 0, b"x" * 500, state="done"), Append(key, "e", (Item(b"1"), Item(b"2"))))
        print(key.id, flush=True)
        number += 1

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    await store.commit(Put(Key("me", "response", f"{sys.argv[2]}-working"), 0, b"", state="running", run=store.run))
    print(f"{sys.argv[2]}-working", flush=True)
    await asyncio.gather(*(work(store, f"{sys.argv[2]}-{number}") for number in range(8)))

asyncio.run(main())
"""  # noqa: E501


async def kill_while_writing(path: Path, turn: int, seconds: float) -> list[str]:
    """Kill a process while it writes, and return the writes that it acknowledged."""
    command = [sys.executable, "-c", WRITER, path, str(turn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 - as below
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip()]
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else runs on this loop
        process.kill()
        rest = process.stdout.read()
    # A line that the kill truncated is not an acknowledgment.
    return acknowledged + rest[: rest.rfind("\n") + 1].split()


async def check(path: Path, acknowledged: list[str]) -> None:
    store = SqliteStore(path)
    await store.open()
    for id in acknowledged:
        record = await store.get(key(id))
        assert record is not None, id
        if record.state == "done":
            assert [entry.body for entry in await store.load_entries(key(id), "e")] == [b"1", b"2"]
    for record in await store.list_abandoned("response"):
        await store.commit(Replace(record.key, "failed", b"", version=record.version))
    assert await store.list_abandoned("response") == ()
    await store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute(
        "SELECT count(*) FROM dragoman_records WHERE state = 'running'"
    ).fetchone() == (0,)
    connection.close()


async def test_killed_writer_keeps_acknowledged_writes(tmp_path: Path):
    acknowledged = await kill_while_writing(tmp_path / "x.db", 0, 0.05)
    await check(tmp_path / "x.db", acknowledged)


@pytest.mark.long
async def test_repeatedly_killed_writers_keep_acknowledged_writes(tmp_path: Path):
    rng = random.Random(7)
    acknowledged = list[str]()
    for turn in range(20):
        acknowledged += await kill_while_writing(tmp_path / "x.db", turn, rng.uniform(0, 0.3))
        await check(tmp_path / "x.db", acknowledged[-200:])
    await check(tmp_path / "x.db", acknowledged)


async def test_list_abandoned_after_kill_finds_run_of_killed_process(tmp_path: Path):
    store = SqliteStore(tmp_path / "x.db")
    await store.open()
    await put(store, "own", state="running", run=store.run)
    await kill_while_writing(tmp_path / "x.db", 0, 0)
    assert [record.key.id for record in await store.list_abandoned("response")] == ["0-working"]
    await store.close()
