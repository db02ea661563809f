"""The store in one SQLite file, the default: one writer thread, concurrent readers.

Several server processes can share the file. A commit is acknowledged only after it is
on disk.

A live process holds a file lock, which the operating system releases however the
process ends. The work of a killed server can thus be recovered immediately, without
heartbeats and their timeouts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeVar

from ..ipc.sqlite_wal import enter_wal
from . import sql
from .group_writer import GroupWriter, build_unavailable_error, run_steps
from .protocol import Bounds, Change, Record, StoreHealth, StoreUnavailable
from .sql_store import SqlStore
from .wal_check import WalContent, find_dropped_frames, read_wal

log = logging.getLogger(__name__)

T = TypeVar("T")

Synchronous = Literal["FULL", "NORMAL"]

_MIN_SQLITE_VERSION = (3, 35, 0)
_MAX_FREED_PAGES = 1024
"""Maximum free pages that one `clean` returns to the file system, which bounds the time
that writes wait for it.
"""
_LOCK_INTERVAL = 0.01
"""Seconds between attempts to lock the directory of the run locks."""
_FILE_GONE = "its file was removed or replaced"


class SqliteStore(SqlStore):
    """The SQLite store.

    path: the database file; its run locks are in a directory next to it.
    synchronous: FULL survives a power failure; NORMAL survives only a process crash,
        and is faster.
    busy_timeout: seconds to wait for another process that is writing.
    now: clock, Unix seconds.
    monotonic: see `SqlStore`.
    warning: what another process of this server has found when it opened the store,
        for the health check; None if nothing.
    """

    def __init__(
        self,
        path: Path,
        bounds: Bounds | None = None,
        *,
        synchronous: Synchronous = "FULL",
        busy_timeout: float = 10.0,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] | None = None,
        warning: str | None = None,
    ) -> None:
        super().__init__(bounds or Bounds(), now, monotonic)
        self._path = path
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._run = "run_" + secrets.token_hex(16)
        self._identities: dict[Path, tuple[int, int] | None] = {}
        self._reported_missing = False
        self._warning = warning
        self._writer: GroupWriter | None = None
        self._reader_pool: ThreadPoolExecutor | None = None

    @property
    def run(self) -> str:
        return self._run

    async def check_health(self) -> StoreHealth:
        try:
            missing = await self._run_in_thread(self._find_missing_file)
        except StoreUnavailable:
            return StoreHealth("it is closed", self._warning)
        return StoreHealth(_FILE_GONE if missing else None, self._warning)

    async def open(self) -> None:
        """Create or migrate the file.

        Raises:
            StoreUnavailable: the file cannot be opened, or its schema is of a newer
                version.
        """
        loop = asyncio.get_running_loop()
        # In WAL mode readers never wait for the writer, and reads are short, so two
        # threads suffice.
        self._reader_pool = reader_pool = ThreadPoolExecutor(2, thread_name_prefix="store-reader")
        self._thread_state = threading.local()
        self._reader_connections: list[sqlite3.Connection] = []
        try:
            connection = await self._run_in_thread(self._prepare)
        except StoreUnavailable:
            self._reader_pool = None
            reader_pool.shutdown(wait=False)
            raise
        self._writer = GroupWriter(connection, loop, self._acknowledge)

    async def close(self) -> None:
        writer = self._writer
        self._writer = None
        reader_pool = self._reader_pool
        self._reader_pool = None
        if writer is None or reader_pool is None:
            return
        touches = self._take_touches()
        # Only times of last use would be lost.
        with suppress(StoreUnavailable):
            await writer.write(
                lambda connection: run_steps(connection, sql.update_touched(touches))
            )
        # In a thread: joining the writer blocks until its last commit is on disk.
        await asyncio.to_thread(writer.stop)
        await asyncio.to_thread(reader_pool.shutdown)
        for connection in self._reader_connections:
            connection.close()
        self._run_lock.release()

    async def commit(self, *changes: Change) -> None:
        steps = sql.apply_changes(changes, self._bounds, self._list_owners(), self._now())
        await self._write(lambda connection: run_steps(connection, steps))

    async def list_abandoned(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        abandoned: list[Record] = []
        for run in await self._read(sql.select_runs()):
            if len(abandoned) < limit and not await self._run_in_thread(
                lambda run=run: is_alive(self._runs_directory, run)
            ):
                abandoned += await self._read(
                    sql.select_run_records(run, kind, limit - len(abandoned))
                )
        return tuple(abandoned)

    async def clean(self, limit: int = 256) -> int:
        now = self._deletion_clock.read()
        touches = self._take_touches()

        def write(connection: sqlite3.Connection) -> int:
            run_steps(connection, sql.update_touched(touches))
            removed = run_steps(connection, sql.delete_surplus(limit, self._bounds, now))
            free_pages: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
            for _ in range(min(free_pages, _MAX_FREED_PAGES)):
                # Python's driver steps the statement once, which frees one page
                # whatever number is given.
                connection.execute("PRAGMA incremental_vacuum")
            return removed

        return await self._write(write)

    @property
    def _runs_directory(self) -> Path:
        return self._path.with_name(self._path.name + "-runs")

    def _prepare(self) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _MIN_SQLITE_VERSION:
            raise StoreUnavailable(
                f"The store needs SQLite 3.35 or newer; this Python has {sqlite3.sqlite_version}."
            )
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Created before SQLite opens it, since SQLite applies the umask; the WAL
            # files inherit this mode.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._runs_directory.mkdir(mode=0o700, exist_ok=True)
            with lock_directory(self._runs_directory, self._busy_timeout):
                return self._open_file()
        except OSError as error:
            raise StoreUnavailable(
                f"The store {self._path} cannot be opened: {error.strerror or error}."
            ) from error

    def _open_file(self) -> sqlite3.Connection:
        """Open the file, one process at a time: of several that open it at once, the
        first one sees that no other has it open, and reports what is damaged.
        """
        self._run_lock = RunLock(self._runs_directory, self._run)
        try:
            wal = self._path.with_name(f"{self._path.name}-wal")
            # SQLite reads the WAL for the first process that opens the store. Later ones
            # use what it has found, and see frames that a killed writer has not published.
            unread = None if has_live_runs(self._runs_directory, self._run) else read_wal(wal)
            connection = self._connect()
            try:
                # Before the first write, which goes over what was dropped.
                if unread is not None:
                    n_dropped = find_dropped_frames(wal, unread, connection)
                    self._report_dropped_frames(unread, n_dropped)
                self._migrate(connection)
                self._report_lost_records(connection)
                self._identities = {path: _identify(path) for path in (self._path, wal)}
            except BaseException:
                connection.close()
                raise
            return connection
        except BaseException:
            self._run_lock.release()
            raise

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            # auto_vacuum can only be set before the first table is created.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        # Before the transaction: SQLite cannot change to WAL within one.
        if enter_wal(connection, self._busy_timeout) != "wal":
            raise StoreUnavailable(
                f"The store {self._path} is on a file system where SQLite cannot keep a WAL."
            )
        # Two processes may open a new file at once; the second one waits here, then
        # finds the schema migrated.
        connection.execute("BEGIN IMMEDIATE")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > sql.SCHEMA_VERSION:
            raise StoreUnavailable(
                f"The store {self._path} was created by a newer version of this server (schema "
                f"{version}; "
                f"this one supports {sql.SCHEMA_VERSION})."
            )
        for statement in sql.list_migrations(version, postgres=False):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {sql.SCHEMA_VERSION:d}")
        connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            # The first statement reads the file and fails here if it is not a database.
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA foreign_keys = ON")
            # Overwrite deleted content where that needs no additional write:
            # conversations should not remain readable in the file's free space.
            connection.execute("PRAGMA secure_delete = FAST")
        except BaseException:
            connection.close()
            raise
        return connection

    def _acknowledge(self, connection: sqlite3.Connection) -> None:
        """Check that what was committed is durable, and note how far it goes."""
        self._check_files()
        self._run_lock.note_acknowledged(_read_last_position(connection))

    def _check_files(self) -> None:
        """Check that the store is still at its path.

        Raises:
            StoreUnavailable: a file was removed or replaced.
        """
        if self._find_missing_file() is not None:
            raise StoreUnavailable(f"The store is unavailable: {_FILE_GONE}.")

    def _find_missing_file(self) -> Path | None:
        """Return a file of the store that was removed or replaced: SQLite would go on with
        the files that it has open, which are lost when the process ends.

        Called by the writer's and the readers' threads at once, so that each answers with
        what it has seen itself.
        """
        missing = (
            path for path, identity in self._identities.items() if _identify(path) != identity
        )
        path = next(missing, None)
        if path is not None and not self._reported_missing:
            log.error(
                "the store failed: %s was removed or replaced while the server runs; restart "
                "it to use the file that is there now",
                path,
            )
        self._reported_missing = path is not None
        return path

    def _report_dropped_frames(self, wal: WalContent, n_frames: int) -> None:
        if n_frames:
            self._warn(
                f"the write-ahead log of the store is damaged: SQLite has dropped {n_frames} of "
                f"its {wal.committed} pages, and with them the last stored changes"
            )
        elif wal.has_partial_frame:
            self._warn(
                "the write-ahead log of the store ends within a page: the last change was not "
                "stored completely, or the file was truncated"
            )

    def _report_lost_records(self, connection: sqlite3.Connection) -> None:
        """Compare the store with what processes that have died had acknowledged."""
        acknowledged = take_acknowledged(self._runs_directory)
        lost = acknowledged - _read_last_position(connection)
        if lost > 0:
            self._warn(
                f"the store lacks the last {lost} stored objects, which clients were told to be "
                "stored: the file is damaged, or was replaced by an older one"
            )

    def _warn(self, text: str) -> None:
        # Only the log names the path: the health check is public.
        log.error("%s: %s", self._path, text)
        self._warning = text if self._warning is None else f"{self._warning}; {text}"

    async def _read(self, steps: sql.Steps[T]) -> T:
        def read() -> T:
            self._check_files()
            return run_steps(self._get_reader(), steps)

        return await self._run_in_thread(read)

    def _get_reader(self) -> sqlite3.Connection:
        """Return the read-only connection of the current thread."""
        connection: sqlite3.Connection | None = self._thread_state.__dict__.get("connection")
        if connection is None:
            connection = self._connect()
            self._reader_connections.append(connection)
            # A reader can never write, whatever statement a bug passes to it.
            connection.execute("PRAGMA query_only = ON")
            self._thread_state.connection = connection
        return connection

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        if (pool := self._reader_pool) is None:
            raise StoreUnavailable("The store is closed.")
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work)
        except sqlite3.Error as error:
            raise build_unavailable_error(error) from error

    async def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._writer is None:
            raise StoreUnavailable("The store is closed.")
        return await self._writer.write(work)


def _read_last_position(connection: sqlite3.Connection) -> int:
    """Return the position of the last record that was ever stored."""
    row = connection.execute(
        "SELECT seq FROM sqlite_sequence WHERE name = 'dragoman_records'"
    ).fetchone()
    return 0 if row is None else row[0]


def _identify(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from another one of its name; None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class RunLock:
    """The file lock of one opening of the store.

    run: unique name of the opening, and of the file.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self._path = directory / run
        self._acknowledged = 0
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        if not _lock(self._file):
            raise OSError(f"cannot lock {self._path}")

    def note_acknowledged(self, position: int) -> None:
        """Note the last record that clients were told to be stored. If this process
        dies, the next one finds it.
        """
        if position != self._acknowledged:
            self._acknowledged = position
            # It is a precaution: what was stored is stored without it.
            with suppress(OSError):
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, b"%020d" % position)

    def release(self) -> None:
        os.close(self._file)
        self._path.unlink(missing_ok=True)


def take_acknowledged(directory: Path) -> int:
    """Return the last record that any dead process has acknowledged, and remove the
    files of these.

    The caller holds `lock_directory`, so that no file belongs to a process that has not
    locked it yet.
    """
    acknowledged = 0
    for path in directory.iterdir():
        with suppress(OSError, ValueError):
            text = path.read_bytes()
            # It is empty if the process has stored nothing.
            if not is_alive(directory, path.name) and text:
                acknowledged = max(acknowledged, int(text))
    return acknowledged


def has_live_runs(directory: Path, own: str) -> bool:
    """Whether other processes, or other openings of this one, have the store open."""
    return any(_is_locked(path) for path in directory.iterdir() if path.name != own)


def is_alive(directory: Path, run: str) -> bool:
    """Whether a process, including this one, holds the lock. Removes the file of a dead
    process.
    """
    path = directory / run
    if _is_locked(path):
        return True
    path.unlink(missing_ok=True)
    return False


def _is_locked(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        # The operating system releases locks whenever a process ends, so there are no
        # stale locks.
        return not _lock(file)
    finally:
        os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> bool:
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    @contextmanager
    def lock_directory(directory: Path, timeout: float) -> Generator[None]:  # noqa: ARG001
        """Windows cannot lock a directory. It refuses to remove a file that is open, which
        is what the lock must prevent.
        """
        yield

else:
    import fcntl

    def _lock(file: int) -> bool:
        try:
            # flock locks the open file, not the process: two openings in one process
            # are two runs.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def lock_directory(directory: Path, timeout: float) -> Generator[None]:
        """Exclude other processes, and other threads of this one, that do the same.

        Raises:
            TimeoutError: another process holds the lock for longer than the timeout, in
                seconds.
        """
        file = os.open(directory, os.O_RDONLY)
        try:
            deadline = time.monotonic() + timeout
            while not _lock(file):
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"another process has been opening it for {timeout:g} seconds"
                    )
                time.sleep(_LOCK_INTERVAL)
            yield
        finally:
            os.close(file)
