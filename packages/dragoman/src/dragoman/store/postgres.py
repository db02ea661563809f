"""The store in PostgreSQL, for servers on several machines. Needs `asyncpg`, the extra
`postgres`.

A session-level advisory lock marks a live process. The connection must therefore be a
session of its own: a pooler in transaction mode, such as PgBouncer, does not work.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from . import sql
from .protocol import Bounds, Change, Record, StoreUnavailable
from .sql_store import SqlStore

log = logging.getLogger(__name__)

T = TypeVar("T")

_asyncpg: Any = asyncpg
"""asyncpg has no type annotations; untyped values do not leave this module."""


class _Connection(Protocol):
    """The part of asyncpg's connection interface that is used here."""

    async def fetch(self, query: str, *args: object) -> sql.Rows: ...
    async def fetchval(self, query: str, *args: object) -> object: ...
    async def execute(self, query: str, *args: object) -> str: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...


_MIGRATION_LOCK = 0x64726167
"""The advisory lock that serializes schema migrations."""
_MAX_CONNECTIONS = 8
_MAX_ATTEMPTS = 5
# Errors after which a transaction can be retried.
_TRANSIENT: Any = (_asyncpg.DeadlockDetectedError, _asyncpg.SerializationError)
_FAILURES: Any = (
    _asyncpg.PostgresError,
    _asyncpg.InterfaceError,
    _asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class PostgresStore(SqlStore):
    """The PostgreSQL store.

    dsn: `postgresql://user:password@host/database`.
    timeout: seconds for connecting, and for a statement.
    now: clock, Unix seconds.
    """

    def __init__(
        self,
        dsn: str,
        bounds: Bounds | None = None,
        *,
        timeout: float = 10.0,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(bounds or Bounds(), now, monotonic)
        self._dsn = dsn
        self._timeout = timeout
        self._run = "run_" + secrets.token_hex(16)
        self._pool: Any = None
        self._lock_connection: Any = None

    @property
    def run(self) -> str:
        return self._run

    async def open(self) -> None:
        """Connect and create or migrate the tables.

        Raises:
            StoreUnavailable: no connection, or the schema is of a newer version.
        """
        try:
            async with _translate_errors():
                self._pool = await _asyncpg.create_pool(
                    self._dsn,
                    min_size=1,
                    max_size=_MAX_CONNECTIONS,
                    timeout=self._timeout,
                    command_timeout=self._timeout,
                )
                await self._ensure_run_lock()
                async with self._pool.acquire() as connection, connection.transaction():
                    await _migrate(connection)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        pool = self._pool
        self._pool = None
        lock_connection = self._lock_connection
        self._lock_connection = None
        try:
            async with _translate_errors():
                if pool is not None:
                    async with pool.acquire() as connection:
                        await _run_steps(connection, sql.update_touched(self._take_touches()))
                    await pool.close()
                if lock_connection is not None:
                    await lock_connection.close()
        except StoreUnavailable:
            # Only times of last use are lost. Connections that are still open are
            # terminated here.
            for failed_connection in filter(None, (pool, lock_connection)):
                failed_connection.terminate()

    async def commit(self, *changes: Change) -> None:
        now = self._now()
        owners = self._list_owners()
        await self._write(lambda: sql.apply_changes(changes, self._bounds, owners, now))

    async def list_abandoned(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        abandoned: list[Record] = []
        for run in await self._read(sql.select_runs()):
            if len(abandoned) >= limit or run == self._run:
                continue
            async with (
                _translate_errors(),
                self._acquire_connection() as connection,
                connection.transaction(),
            ):
                # Held for this transaction only. If two processes check at once, one
                # can mistake the other's lock for a live run; the next check corrects
                # that.
                is_dead = await connection.fetchval(
                    "SELECT pg_try_advisory_xact_lock($1)", _compute_lock_id(run)
                )
            if is_dead:
                abandoned += await self._read(
                    sql.select_run_records(run, kind, limit - len(abandoned))
                )
        return tuple(abandoned)

    async def clean(self, limit: int = 256) -> int:
        async with _translate_errors():
            await self._ensure_run_lock()
        now = self._deletion_clock.read()
        touches = self._take_touches()
        await self._write(lambda: sql.update_touched(touches))
        return await self._write(lambda: sql.delete_surplus(limit, self._bounds, now))

    async def _ensure_run_lock(self) -> None:
        """Acquire this run's lock if needed: it is lost with its connection, such as
        when the database restarts.
        """
        if self._lock_connection is not None and not self._lock_connection.is_closed():
            return
        connection = await _asyncpg.connect(
            self._dsn, timeout=self._timeout, command_timeout=self._timeout
        )
        try:
            # Without waiting: the database may not have noticed the loss of the former
            # connection, which can take hours. Until then that one holds the lock, and
            # the next `clean` tries again.
            is_locked = await connection.fetchval(
                "SELECT pg_try_advisory_lock($1)", _compute_lock_id(self._run)
            )
        except BaseException:
            connection.terminate()
            raise
        if is_locked:
            self._lock_connection = connection
        else:
            await connection.close()

    async def _read(self, steps: sql.Steps[T]) -> T:
        async with _translate_errors(), self._acquire_connection() as connection:
            return await _run_steps(connection, steps)

    async def _write(self, steps: Callable[[], sql.Steps[T]]) -> T:
        """Run `steps` in a transaction. Retry after a deadlock or a serialization
        failure, which roll it back.
        """
        async with _translate_errors(), self._acquire_connection() as connection:
            for retries_left in reversed(range(_MAX_ATTEMPTS)):
                try:
                    # Each attempt needs a new generator.
                    async with connection.transaction():
                        return await _run_steps(connection, steps())
                except _TRANSIENT:
                    if not retries_left:
                        raise
            raise AssertionError("the last attempt has raised")

    @asynccontextmanager
    async def _acquire_connection(self) -> AsyncGenerator[_Connection]:
        if self._pool is None:
            raise StoreUnavailable("The store is closed.")
        async with self._pool.acquire(timeout=self._timeout) as connection:
            yield connection


async def _run_steps(connection: _Connection, steps: sql.Steps[T]) -> T:
    """Run the statements of `steps` to completion and return its result."""
    try:
        statement, parameters = next(steps)
        while True:
            statement, parameters = steps.send(await connection.fetch(statement, *parameters))
    except StopIteration as stop:
        return stop.value


async def _migrate(connection: _Connection) -> None:
    # Several servers may start at once; `CREATE TABLE IF NOT EXISTS` alone can fail in
    # such a race.
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
    await connection.execute(
        "CREATE TABLE IF NOT EXISTS dragoman_schema (version INTEGER NOT NULL)"
    )
    rows = await connection.fetch("SELECT coalesce(max(version), 0) FROM dragoman_schema")
    version: int = rows[0][0]
    # After a downgrade: writing with the old layout could damage records that the newer
    # server needs.
    if version > sql.SCHEMA_VERSION:
        raise StoreUnavailable(
            f"The store was created by a newer version of this server (schema {version}; this one "
            f"supports "
            f"{sql.SCHEMA_VERSION})."
        )
    for statement in sql.list_migrations(version, postgres=True):
        await connection.execute(statement)
    if version < sql.SCHEMA_VERSION:
        await connection.execute("INSERT INTO dragoman_schema VALUES ($1)", sql.SCHEMA_VERSION)


def _compute_lock_id(run: str) -> int:
    """Return 63 random bits of the run's name: an advisory lock's key is a signed
    64-bit integer.
    """
    return int(run.removeprefix("run_")[:16], 16) >> 1


@asynccontextmanager
async def _translate_errors() -> AsyncGenerator[None]:
    """Log PostgreSQL's errors, which can name hosts and users, and raise
    StoreUnavailable with a generic message.
    """
    try:
        yield
    except _FAILURES as error:
        log.error("the store failed: %s", error)
        raise StoreUnavailable(
            "The store is unavailable: the database does not respond correctly."
        ) from error
