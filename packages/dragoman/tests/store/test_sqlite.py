"""SQLite's file: its mode, its schema, other processes, and a full disk."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from dragoman.store import (
    HEALTHY,
    Append,
    Bounds,
    Delete,
    Item,
    Key,
    Put,
    SqliteStore,
    StoreUnavailable,
)
from dragoman.store.sqlite import RunLock, is_alive, lock_directory

from .backends import key, put


async def open_store(path: Path, **more: object) -> SqliteStore:
    store = SqliteStore(path, **more)  # pyright: ignore[reportArgumentType]
    await store.open()
    return store


async def test_sqlite_files_have_owner_only_mode(tmp_path: Path):
    store = await open_store(tmp_path / "state" / "x.db")
    await put(store, "a")
    modes = modes_below(tmp_path)
    assert {name.partition(".db")[2] for name in modes} >= {"", "-wal", "-shm"}
    assert {mode & 0o077 for mode in modes.values()} == {0}
    await store.close()


def modes_below(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode for path in directory.rglob("*")}


async def test_sqlite_commits_survive_restart(tmp_path: Path):
    store = await open_store(tmp_path / "x.db")
    await put(store, "a", b"kept")
    await store.close()
    store = await open_store(tmp_path / "x.db")
    record = await store.get(key("a"))
    assert record is not None
    assert record.body == b"kept"
    await store.close()


@pytest.mark.parametrize(("durability", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_sqlite_synchronous_level_is_configurable(
    tmp_path: Path, durability: str, level: int
):
    store = await open_store(tmp_path / "x.db", synchronous=durability)

    def look(connection: sqlite3.Connection) -> list[int]:
        pragmas = ("synchronous", "foreign_keys", "auto_vacuum", "secure_delete")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]

    writer = store._writer  # pyright: ignore[reportPrivateUsage]
    assert writer is not None
    assert await writer.write(look) == [level, 1, 2, 2]
    await store.close()


async def test_sqlite_newer_schema_version_rejected_unchanged(tmp_path: Path):
    with sqlite3.connect(tmp_path / "x.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreUnavailable, match="newer version"):
        await open_store(tmp_path / "x.db")
    assert not list((tmp_path / "x.db-runs").iterdir())


async def test_sqlite_invalid_file_rejected(tmp_path: Path):
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to look at " * 100)
    with pytest.raises(StoreUnavailable, match="file is not a database"):
        await open_store(tmp_path / "x.db")


async def test_sqlite_full_disk_fails_commits_then_recovers(tmp_path: Path):
    store = await open_store(tmp_path / "x.db")
    await put(store, "before")
    writer = store._writer  # pyright: ignore[reportPrivateUsage]
    assert writer is not None
    await writer.write(
        lambda connection: connection.execute("PRAGMA max_page_count = 30").fetchall()
    )
    commits = [store.commit(Put(key(f"r{number}"), 0, b"x" * 20_000)) for number in range(20)]
    results = await asyncio.gather(*commits, return_exceptions=True)
    failed = [error for error in results if error is not None]
    assert failed
    assert all(isinstance(error, StoreUnavailable) and "full" in error.message for error in failed)
    for number, result in enumerate(results):
        assert (await store.get(key(f"r{number}")) is not None) == (result is None)
    await writer.write(
        lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    )
    await put(store, "after", b"x" * 20_000)
    await store.close()


async def test_sqlite_locked_file_fails_after_busy_timeout(tmp_path: Path):
    store = await open_store(tmp_path / "x.db", busy_timeout=0.05)
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.commit(Put(key("a"), 0, b""))
    assert await store.get(key("a")) is None
    other.execute("ROLLBACK")
    other.close()
    await put(store, "a")
    await store.close()


async def test_sqlite_cancelled_commit_does_not_affect_others(tmp_path: Path):
    store = await open_store(tmp_path / "x.db")
    task = asyncio.create_task(store.commit(Put(key("a"), 0, b"")))
    await asyncio.sleep(0)
    task.cancel()
    await put(store, "b")
    await store.close()


async def test_sqlite_closed_store_raises_unavailable(tmp_path: Path):
    store = await open_store(tmp_path / "x.db")
    await store.close()
    for call in (
        store.commit(Put(key("a"), 0, b"")),
        store.get(key("a")),
        store.list_abandoned("response"),
    ):
        with pytest.raises(StoreUnavailable, match="closed"):
            await call


async def test_sqlite_clean_shrinks_file(tmp_path: Path):
    store = await open_store(tmp_path / "x.db", bounds=Bounds(records=1))
    for number in range(20):
        await put(store, f"r{number}", b"x" * 50_000)
    assert await store.clean() == 19
    await store.close()
    assert (tmp_path / "x.db").stat().st_size < 300_000


ONE_PROCESS = """
import asyncio, sys
from pathlib import Path
from dragoman.store import CommitConflict, Delete, Key, SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    record = await store.get(Key("me", "response", "a"))
    print("seen", record.body.decode() if record else None, flush=True)
    sys.stdin.readline()
    results = await asyncio.gather(
        *(store.commit(Delete(Key("me", "response", "a"))) for _ in range(10)), return_exceptions=True
    )
    assert all(result is None or isinstance(result, CommitConflict) for result in results), results
    print(sum(result is None for result in results), flush=True)
    await store.close()

asyncio.run(main())
"""  # noqa: E501


def other_process(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ONE_PROCESS, path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_sqlite_two_processes_delete_record_once(tmp_path: Path):
    store = await open_store(tmp_path / "x.db")
    await put(store, "a", b"hello")
    with ExitStack() as stack:
        processes = [stack.enter_context(other_process(tmp_path / "x.db")) for _ in range(2)]
        outputs = [process.stdout.readline().strip() for process in processes if process.stdout]
        counts = [process.communicate("go\n", timeout=60)[0].strip() for process in processes]
    assert outputs == ["seen hello"] * 2
    assert sum(map(int, counts)) == 1
    await store.close()


CREATE = """
import asyncio, sys
from pathlib import Path
from dragoman.store import SqliteStore

async def main():
    print("ready", flush=True)
    for line in sys.stdin:
        store = SqliteStore(Path(line.strip()), synchronous="NORMAL")
        await store.open()
        await store.close()
        print("created", flush=True)

asyncio.run(main())
"""


def test_sqlite_processes_create_one_file_at_once(tmp_path: Path):
    command = [sys.executable, "-c", CREATE]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    lines: list[str] = []
    with ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
            assert process.stdout is not None
            lines.append(process.stdout.readline())
        for number in range(20):
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(f"{tmp_path / str(number)}\n")
                process.stdin.flush()
            for process in processes:
                assert process.stdout is not None
                lines.append(process.stdout.readline())
        for process in processes:
            process.communicate()
    assert lines == ["ready\n"] * 4 + ["created\n"] * 80


def test_run_lock_is_alive_only_while_held(tmp_path: Path):
    directory = tmp_path / "runs"
    directory.mkdir()
    lock = RunLock(directory, "run_a")
    assert is_alive(directory, "run_a")
    lock.release()
    assert not is_alive(directory, "run_a")
    assert not is_alive(directory, "run_never")
    (directory / "run_killed").touch()
    assert not is_alive(directory, "run_killed")
    assert not (directory / "run_killed").exists()


async def test_sqlite_group_commit_stores_concurrent_appends(tmp_path: Path):
    """Group commit: jobs that arrive during a write are committed together."""
    store = await open_store(tmp_path / "x.db", synchronous="NORMAL")
    await put(store, "a")
    await asyncio.gather(*(store.commit(Append(key("a"), "e", (Item(b"x"),))) for _ in range(500)))
    assert len(await store.load_entries(key("a"), "e", limit=1000)) == 500
    await store.commit(Delete(Key("me", "response", "a")))
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove open files")
@pytest.mark.parametrize("name", ["x.db", "x.db-wal"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_removed_store_file_fails_reads_and_writes(
    tmp_path: Path, name: str, is_replaced: bool, caplog: pytest.LogCaptureFixture
):
    store = await open_store(tmp_path / "x.db")
    await put(store, "a")
    file = tmp_path / name
    content = file.read_bytes()
    file.unlink()
    if is_replaced:
        # Another inode, also where the file system reuses numbers.
        (tmp_path / "other").touch()
        file.write_bytes(content)
    for request in (put(store, "b"), store.get(key("a")), store.clean()):
        with pytest.raises(StoreUnavailable, match="its file was removed or replaced"):
            await request
    assert f"{name} was removed or replaced while the server runs; restart it" in caplog.text
    assert (await store.check_health()).fault == "its file was removed or replaced"
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not remove open files")
async def test_checks_during_removal_never_call_open_store_closed(tmp_path: Path):
    for attempt in range(20):
        path = tmp_path / f"{attempt}.db"
        store = await open_store(path)
        checks = [asyncio.create_task(store.check_health()) for _ in range(40)]
        for _ in range(attempt):
            await asyncio.sleep(0)
        path.unlink()
        faults = {health.fault for health in await asyncio.gather(*checks)}
        assert faults <= {None, "its file was removed or replaced"}
        await store.close()


async def test_clock_set_forward_deletes_nothing_for_an_hour(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    wall = 1_700_000_000.0
    monotonic = 50.0
    store = await open_store(tmp_path / "x.db", now=lambda: wall, monotonic=lambda: monotonic)
    await put(store, "a")
    wall += 3 * 365 * 86400
    monotonic += 60
    assert await store.clean() == 0
    assert await store.get(key("a")) is None, "what is expired is not served"
    assert "the clock was set forward" in caplog.text
    wall -= 3 * 365 * 86400 - 60
    assert await store.clean() == 0
    assert await store.get(key("a")) is not None
    # The time was wrong before, and is right from now on.
    wall += 3 * 365 * 86400
    assert await store.clean() == 0
    wall += 3600
    monotonic += 3600
    assert await store.clean() == 1
    await store.close()


def crash(path: Path, n_records: int) -> None:
    """Store records in a process that is killed."""
    program = """
import asyncio, os, sys
from pathlib import Path
from dragoman.store import Key, Put, SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    for number in range(int(sys.argv[2])):
        await store.commit(Put(Key("me", "response", f"r{number}"), 0, b"x" * 3000))
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program, path, str(n_records)], check=False, timeout=60)


def damage(wal: Path, kind: str) -> None:
    data = bytearray(wal.read_bytes())
    match kind:
        case "none":
            pass
        case "bit":
            data[len(data) // 2] ^= 1
        case "header":
            data[18] ^= 1
        case "truncated":
            del data[len(data) // 2 :]
        case "frames":
            # At the end of a frame, where nothing in the file tells it.
            del data[32 + 9 * (4096 + 24) :]
        case _:
            data.clear()
    wal.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("none", None),
        ("bit", "SQLite has dropped"),
        ("header", "SQLite has dropped"),
        ("truncated", "ends within a page"),
        ("frames", "lacks the last"),
        ("empty", "lacks the last"),
    ],
)
async def test_sqlite_damaged_wal_is_reported_at_start(
    tmp_path: Path, kind: str, words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.db"
    # The schema is in the file itself, as after any checkpoint.
    await (await open_store(path)).close()
    crash(path, 20)
    damage(tmp_path / "x.db-wal", kind)
    store = await open_store(path)
    health = await store.check_health()
    n_stored = len(await store.load_page("me", "response", limit=99))
    assert health.fault is None
    if words is None:
        assert (n_stored, health.warning, caplog.text) == (20, None, "")
    else:
        assert n_stored < 20
        assert health.warning is not None
        assert words in health.warning
        # What is lost is counted, since the killed process has noted what it promised.
        assert f"lacks the last {20 - n_stored} stored objects" in health.warning
        # Only the log tells the path: the health check is public.
        assert str(tmp_path) not in health.warning
        assert f"{path}: {health.warning.split('; ')[0]}" in caplog.text
    await store.close()
    # It is told once; the next start finds an intact file.
    store = await open_store(path)
    assert (await store.check_health()).warning is None
    assert list((tmp_path / "x.db-runs").iterdir()) != []
    await store.close()
    assert list((tmp_path / "x.db-runs").iterdir()) == []


OPEN = """
import asyncio, sys
from pathlib import Path
from dragoman.store import SqliteStore

async def main():
    print("ready", flush=True)
    for line in sys.stdin:
        store = SqliteStore(Path(line.strip()))
        await store.open()
        print((await store.check_health()).warning, flush=True)
        sys.stdin.readline()
        await store.close()

asyncio.run(main())
"""


async def test_damaged_wal_is_reported_by_one_of_two_processes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    await (await open_store(source / "x.db")).close()
    crash(source / "x.db", 20)
    damage(source / "x.db-wal", "bit")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                    [sys.executable, "-c", OPEN],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(2)
        ]

        def send(line: str) -> None:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()

        def receive() -> list[str]:
            return [process.stdout.readline() for process in processes if process.stdout]

        assert receive() == ["ready\n"] * 2
        for attempt in range(10):
            directory = tmp_path / str(attempt)
            shutil.copytree(source, directory)
            send(f"{directory / 'x.db'}\n")
            silent, reporting = sorted(receive(), key=len)
            assert silent == "None\n"
            assert "SQLite has dropped" in reporting
            assert "lacks the last" in reporting
            send("close\n")
        for process in processes:
            process.communicate()
    assert not any(name.startswith("run_") for name in modes_below(tmp_path / "9"))


async def test_sqlite_run_of_idle_killed_process_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    crash(path, 0)
    (left,) = (tmp_path / "x.db-runs").iterdir()
    assert left.read_bytes() == b""
    store = await open_store(path)
    assert [run.name for run in (tmp_path / "x.db-runs").iterdir()] == [store.run]
    assert await store.check_health() == HEALTHY
    await store.close()


async def test_sqlite_open_during_other_opening_ends_with_error(tmp_path: Path) -> None:
    directory = tmp_path / "x.db-runs"
    directory.mkdir()
    with (
        lock_directory(directory, 0),
        pytest.raises(StoreUnavailable, match=r"x\.db cannot be opened: another process"),
    ):
        await open_store(tmp_path / "x.db", busy_timeout=0)
    assert list(directory.iterdir()) == []
    await (await open_store(tmp_path / "x.db")).close()


async def test_sqlite_older_file_is_reported_at_start(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    store = await open_store(path)
    await put(store, "a")
    await store.close()
    backup = path.read_bytes()
    crash(path, 5)
    for name in ("x.db-wal", "x.db-shm"):
        (tmp_path / name).unlink()
    path.write_bytes(backup)
    store = await open_store(path)
    warning = (await store.check_health()).warning
    assert warning is not None
    assert "lacks the last 5 stored objects" in warning
    await store.close()


async def test_sqlite_open_beside_writing_process_reports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    writer = await open_store(path)
    for number in range(30):
        await put(writer, f"r{number}", b"x" * 3000)
        if number % 10 == 5:
            other = await open_store(path)
            assert await other.check_health() == HEALTHY
            await other.close()
    await writer.close()


def copy_into(source: Path, target: Path) -> None:
    """Overwrite a file in place, in a process of its own: closing the file of the
    wal-index would end SQLite's locks of this process.
    """
    program = "import sys; open(sys.argv[2], 'r+b').write(open(sys.argv[1], 'rb').read())"
    target.touch()
    subprocess.run([sys.executable, "-c", program, source, target], check=True, timeout=60)


async def test_sqlite_frames_of_killed_writer_are_not_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    wal = tmp_path / "x.db-wal"
    index = tmp_path / "x.db-shm"
    living = await open_store(path)
    await put(living, "a")
    copy_into(index, tmp_path / "index")
    # As a writer leaves it that was killed before it published its commit.
    await put(living, "b", b"x" * 50_000)
    copy_into(tmp_path / "index", index)
    size = wal.stat().st_size
    other = await open_store(path)
    assert await other.check_health() == HEALTHY
    await other.close()
    # The next commit overwrites some of its frames, and then the server is killed.
    await put(living, "c")
    left = wal.read_bytes()
    assert len(left) == size
    wal.with_name("database").write_bytes(path.read_bytes())
    await living.close()
    path.write_bytes(wal.with_name("database").read_bytes())
    wal.write_bytes(left)
    store = await open_store(path)
    assert await store.check_health() == HEALTHY
    assert await store.get(key("c")) is not None
    assert await store.get(key("b")) is None
    await store.close()


async def test_sqlite_open_beside_other_process_reports_nothing(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from dragoman.store import Key, Put, SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    print(flush=True)
    number = 0
    while True:
        await store.commit(Put(Key("me", "response", f"r{number % 50}"), 0, b"x" * 9000))
        number += 1

asyncio.run(main())
"""
    path = tmp_path / "x.db"
    command = [sys.executable, "-c", program, path]
    writers = [
        subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220 - it returns at once
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline()
        for _ in range(10):
            store = await open_store(path)
            assert await store.check_health() == HEALTHY
            await store.close()
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
    # What the killed ones left behind is no damage either.
    store = await open_store(path)
    assert await store.check_health() == HEALTHY
    await store.close()
