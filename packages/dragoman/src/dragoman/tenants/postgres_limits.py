"""Shared limits in PostgreSQL, for servers on several machines. Needs `asyncpg`, the
extra `postgres`.

A batch is one transaction, which locks its keys first: four round trips. The tables are
unlogged: a commit does not wait for the disk, and a crash of the database empties them.
Budgets are then restored from the usage in the server's store (`Demand.floor`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from .apply_batch import Holder, apply_batch, decode_states, encode_state
from .limits_store import (
    HOLDER_RETENTION,
    STATE_RETENTION,
    TIMEOUT,
    Batch,
    BatchResult,
    BatchStatus,
    LimitsStoreUnavailable,
)

_asyncpg: Any = asyncpg
"""asyncpg has no type annotations; untyped values do not leave this module."""
_FAILURES: Any = (
    _asyncpg.PostgresError,
    _asyncpg.InterfaceError,
    _asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
_CONNECT_TIMEOUT = 10.0
_LOCK_NAMESPACE = 0x6C696D69
"""The advisory lock of the setup, and the class id of the locks of batches. PostgreSQL
keeps locks of one and two numbers apart.
"""

# Names end with the schema's version, so that servers of two versions can share a
# database.
_SCHEMA = """
CREATE UNLOGGED TABLE IF NOT EXISTS dragoman_limit_keys_2 (
    key TEXT PRIMARY KEY, state TEXT NOT NULL, touched BIGINT NOT NULL);
CREATE UNLOGGED TABLE IF NOT EXISTS dragoman_limit_holders_2 (
    holder TEXT PRIMARY KEY, expires BIGINT NOT NULL, seq BIGINT NOT NULL)
"""
# One statement sees one snapshot: no place without its holder.
_READ = """
SELECT 'time', '', (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT::TEXT
UNION ALL SELECT 'key', key, state FROM dragoman_limit_keys_2 WHERE key = ANY($1)
UNION ALL SELECT 'holder', holder, expires || ' ' || seq FROM dragoman_limit_holders_2
"""
_WRITE = """
WITH written AS (
    INSERT INTO dragoman_limit_keys_2
        SELECT key, state, $5 FROM unnest($1::TEXT[], $2::TEXT[]) AS row (key, state)
        ON CONFLICT (key) DO UPDATE SET state = excluded.state, touched = excluded.touched
)
INSERT INTO dragoman_limit_holders_2
    SELECT * FROM unnest($3::TEXT[], $4::BIGINT[], $6::BIGINT[])
    ON CONFLICT (holder) DO UPDATE SET expires = excluded.expires, seq = excluded.seq
"""
# Without waiting for rows that other batches write: two waits could be a deadlock.
_FORGET_HOLDERS = """
DELETE FROM dragoman_limit_holders_2 WHERE holder IN (
    SELECT holder FROM dragoman_limit_holders_2 WHERE expires <= $1 FOR UPDATE SKIP LOCKED)
"""
_DELETE_UNUSED = """
DELETE FROM dragoman_limit_keys_2
    WHERE touched < (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT - $1
"""


class PostgresLimits:
    """A `LimitsStore` in PostgreSQL. It needs only one connection, since a process
    sends one batch at a time.

    dsn: `postgresql://user:password@host/database`.
    now: returns microseconds of Unix time; None for the database's clock, which all
        servers share.
    """

    def __init__(self, dsn: str, now: Callable[[], int] | None = None) -> None:
        self._dsn = dsn
        self._now = now
        self._connection: Any = None

    async def open(self) -> None:
        try:
            connection = await self._connect()
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK_NAMESPACE)
                # Only the first server needs the privilege to create tables.
                table = "SELECT to_regclass('dragoman_limit_holders_2')::TEXT"
                if await connection.fetchval(table) is None:
                    await connection.execute(_SCHEMA)
                await connection.execute(_DELETE_UNUSED, STATE_RETENTION)
        # asyncpg raises ValueError for an invalid DSN.
        except (*_FAILURES, ValueError) as error:
            self._drop()
            raise _build_unavailable(error) from error

    async def close(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            try:
                await connection.close(timeout=TIMEOUT)
            except _FAILURES:
                connection.terminate()

    async def apply(self, batch: Batch) -> BatchResult:
        try:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = await self._connect()
            return await self._apply(connection, batch)
        except _FAILURES as error:
            self._drop()
            raise _build_unavailable(error) from error
        except BaseException:
            # After a cancellation the connection may still receive the response, which
            # no later query must read.
            self._drop()
            raise

    async def _apply(self, connection: Any, batch: Batch) -> BatchResult:  # noqa: ANN401 - as below
        keys = batch.list_keys()
        holder_ids = batch.list_holders()
        await connection.execute(_begin([*keys, *holder_ids]))
        rows = await connection.fetch(_READ, keys)
        now = int(rows[0][2]) if self._now is None else self._now()
        states = decode_states(keys, {id: text for kind, id, text in rows if kind == "key"})
        holders = {
            id: Holder(*map(int, text.split())) for kind, id, text in rows if kind == "holder"
        }
        result = apply_batch(batch, now, states, holders)
        if result.status is BatchStatus.APPLIED:
            changed = [holders[id] for id in holder_ids]
            await connection.execute(
                _WRITE,
                keys,
                [encode_state(states[key]) for key in keys],
                holder_ids,
                [holder.expires for holder in changed],
                now,
                [holder.seq for holder in changed],
            )
            if batch.seq == 1:
                await connection.execute(_FORGET_HOLDERS, now - HOLDER_RETENTION)
        await connection.execute("COMMIT")
        return result

    async def _connect(self) -> Any:  # noqa: ANN401 - asyncpg is untyped
        self._connection = connection = await _asyncpg.connect(self._dsn, timeout=_CONNECT_TIMEOUT)
        # At higher isolation levels the transaction's snapshot would be older than its
        # locks.
        await connection.execute(
            "SET default_transaction_isolation = 'read committed'; SET synchronous_commit = off;"
        )
        return connection

    def _drop(self) -> None:
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.terminate()


def _begin(names: Iterable[str]) -> str:
    """Return the start of a transaction that locks `names`, as one message. All batches
    lock in the same order, so there is no deadlock. Later statements see what others
    have committed.
    """
    # A lock's number is a signed 32-bit integer.
    locks = sorted({crc32(name.encode()) - 2**31 for name in names})
    return "BEGIN;" + "".join(
        f"SELECT pg_advisory_xact_lock({_LOCK_NAMESPACE}, {lock});" for lock in locks
    )


def _build_unavailable(error: Exception) -> LimitsStoreUnavailable:
    # A TimeoutError has no text.
    return LimitsStoreUnavailable(
        f"PostgreSQL: {str(error) or f'no response within {_CONNECT_TIMEOUT:.0f} s'}"
    )
