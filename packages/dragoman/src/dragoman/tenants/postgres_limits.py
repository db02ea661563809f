"""Shared limits in PostgreSQL, for servers on several machines. Needs `asyncpg`, the
extra `postgres`.

A function in the database does the same as `apply_batch.apply_batch`, so a batch takes
one round trip. The tables are unlogged: a commit does not wait for the disk, and a
crash of the database empties them. Budgets are then restored from the usage in the
server's store (`Demand.floor`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import asyncpg  # pyright: ignore[reportMissingTypeStubs]
import msgspec

from .counters import MAX_CLOCK_STEP
from .limits_store import (
    HOLDER_RETENTION,
    TIMEOUT,
    Batch,
    BatchResult,
    BatchStatus,
    LimitsStoreUnavailable,
    OperationOutcome,
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
_FUNCTION = "dragoman_apply_limits_1"
_SCHEMA = (
    """CREATE UNLOGGED TABLE IF NOT EXISTS dragoman_limit_counters_1 (key TEXT, counter TEXT, used NUMERIC NOT NULL,
        updated BIGINT NOT NULL, until BIGINT NOT NULL, touched BIGINT NOT NULL, PRIMARY KEY (key, counter))""",
    """CREATE UNLOGGED TABLE IF NOT EXISTS dragoman_limit_places_1 (key TEXT, holder TEXT, places BIGINT NOT NULL,
        PRIMARY KEY (key, holder))""",
    """CREATE UNLOGGED TABLE IF NOT EXISTS dragoman_limit_holders_1 (holder TEXT PRIMARY KEY, expires BIGINT NOT NULL,
        seq BIGINT NOT NULL)""",
    f"""CREATE OR REPLACE FUNCTION {_FUNCTION}(v_batch JSONB, v_locks TEXT[], v_virtual_now BIGINT) RETURNS JSONB
    LANGUAGE plpgsql AS $body$
DECLARE
    v_holder TEXT := v_batch->>'holder';
    v_seq BIGINT := (v_batch->>'seq')::BIGINT;
    v_own_expires BIGINT; v_own_seq BIGINT; v_former_seq BIGINT;
    v_now BIGINT; v_lock INTEGER; v_operations JSONB; v_skipped INTEGER; v_number INTEGER := 0;
    v_operation JSONB; v_key TEXT; v_demand JSONB; v_index INTEGER; v_is_taken BOOLEAN; v_outcomes JSONB := '[]';
    v_limit NUMERIC; v_period NUMERIC; v_needed NUMERIC; v_until BIGINT; v_scale NUMERIC; v_amount NUMERIC;
    v_level NUMERIC; v_updated BIGINT; v_window BIGINT;
    v_levels NUMERIC[]; v_updates BIGINT[]; v_windows BIGINT[];
BEGIN
    -- All batches lock in the same order, so there is no deadlock. Later statements see what others have committed.
    FOR v_lock IN SELECT DISTINCT hashtext(name) FROM unnest(v_locks) AS name ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock({_LOCK_NAMESPACE}, v_lock);
    END LOOP;
    v_now := coalesce(v_virtual_now, (extract(epoch FROM clock_timestamp()) * 1000000)::BIGINT);
    SELECT h.expires, h.seq INTO v_own_expires, v_own_seq FROM dragoman_limit_holders_1 h WHERE h.holder = v_holder;
    IF v_own_seq >= v_seq THEN
        RETURN '["repeated", []]';
    END IF;
    IF v_seq > 1 AND (v_own_seq IS NULL OR v_own_expires <= v_now) THEN
        RETURN '["expired", []]';
    END IF;
    v_operations := v_batch->'redo';
    IF v_batch->'previous' <> 'null' THEN
        SELECT h.seq INTO v_former_seq FROM dragoman_limit_holders_1 h WHERE h.holder = v_batch->'previous'->>0;
        IF v_former_seq >= (v_batch->'previous'->>1)::BIGINT THEN
            v_operations := '[]';
        END IF;
        INSERT INTO dragoman_limit_holders_1 VALUES
            (v_batch->'previous'->>0, v_now, (v_batch->'previous'->>1)::BIGINT)
            ON CONFLICT (holder) DO UPDATE SET expires = excluded.expires, seq = excluded.seq;
    END IF;
    v_skipped := jsonb_array_length(v_operations);
    v_operations := v_operations || (v_batch->'operations');
    INSERT INTO dragoman_limit_holders_1 VALUES (v_holder, v_now + (v_batch->>'lease')::BIGINT, v_seq)
        ON CONFLICT (holder) DO UPDATE SET expires = excluded.expires, seq = excluded.seq;
    IF v_seq = 1 THEN
        DELETE FROM dragoman_limit_holders_1 h WHERE h.expires <= v_now - {HOLDER_RETENTION};
        DELETE FROM dragoman_limit_places_1 p WHERE NOT EXISTS
            (SELECT FROM dragoman_limit_holders_1 h WHERE h.holder = p.holder);
        INSERT INTO dragoman_limit_places_1 SELECT name, v_holder, number::BIGINT
            FROM jsonb_each_text(v_batch->'places') AS held (name, number);
    END IF;
    FOR v_operation IN SELECT value FROM jsonb_array_elements(v_operations) LOOP
        v_key := v_operation->>'key';
        v_is_taken := TRUE;
        v_levels := '{{}}'; v_updates := '{{}}'; v_windows := '{{}}';
        FOR v_demand IN SELECT value FROM jsonb_array_elements(v_operation->'demands') LOOP
            v_limit := (v_demand->>'limit')::NUMERIC;
            v_period := (v_demand->>'period')::NUMERIC;
            v_until := (v_demand->>'until')::BIGINT;
            v_needed := (v_demand->>'needed')::NUMERIC;
            v_scale := greatest(v_period, 1);
            v_level := 0; v_updated := v_now; v_window := 0;
            IF v_period = 0 AND v_until = 0 THEN
                SELECT coalesce(sum(p.places), 0) INTO v_level FROM dragoman_limit_places_1 p
                    JOIN dragoman_limit_holders_1 h ON h.holder = p.holder WHERE p.key = v_key AND h.expires > v_now;
            ELSE
                SELECT c.used, c.updated, c.until INTO v_level, v_updated, v_window FROM dragoman_limit_counters_1 c
                    WHERE c.key = v_key AND c.counter = v_demand->>'counter';
                v_level := coalesce(v_level, 0);
                v_updated := coalesce(v_updated, v_now);
                v_window := coalesce(v_window, 0);
                IF v_until > v_window THEN
                    v_level := 0;
                    v_window := v_until;
                END IF;
                IF v_until > 0 AND v_until = v_window THEN
                    v_level := greatest(v_level, (v_demand->>'floor')::NUMERIC);
                END IF;
                IF v_period > 0 AND v_now > v_updated THEN
                    v_level := greatest(0, v_level - (v_now - v_updated) * v_limit);
                END IF;
                IF v_now > v_updated OR v_now < v_updated - {MAX_CLOCK_STEP} THEN
                    v_updated := v_now;
                END IF;
            END IF;
            IF v_period > 0 THEN
                v_needed := least(v_needed, v_limit);
            END IF;
            v_is_taken := v_is_taken AND v_limit * v_scale - v_level >= v_needed * v_scale;
            v_levels := v_levels || v_level;
            v_updates := v_updates || v_updated;
            v_windows := v_windows || v_window;
        END LOOP;
        v_is_taken := v_is_taken OR (v_operation->>'is_forced')::BOOLEAN;
        v_index := 0;
        FOR v_demand IN SELECT value FROM jsonb_array_elements(v_operation->'demands') LOOP
            EXIT WHEN NOT v_is_taken;
            v_index := v_index + 1;
            v_amount := (v_demand->>'amount')::NUMERIC;
            v_scale := greatest((v_demand->>'period')::NUMERIC, 1);
            v_levels[v_index] := greatest(0, v_levels[v_index] + v_amount * v_scale);
            IF v_windows[v_index] = 0 AND (v_demand->>'period')::NUMERIC = 0 THEN
                INSERT INTO dragoman_limit_places_1 VALUES (v_key, v_holder, greatest(0, v_amount)::BIGINT)
                    ON CONFLICT (key, holder) DO UPDATE
                    SET places = greatest(0, dragoman_limit_places_1.places + v_amount::BIGINT);
            ELSE
                INSERT INTO dragoman_limit_counters_1 VALUES
                    (v_key, v_demand->>'counter', v_levels[v_index], v_updates[v_index], v_windows[v_index], v_now)
                    ON CONFLICT (key, counter) DO UPDATE SET used = excluded.used, updated = excluded.updated,
                    until = excluded.until, touched = excluded.touched;
            END IF;
        END LOOP;
        v_number := v_number + 1;
        IF v_number > v_skipped THEN
            v_outcomes := v_outcomes || jsonb_build_array(jsonb_build_array(v_is_taken, to_jsonb(v_levels)));
        END IF;
    END LOOP;
    RETURN jsonb_build_array('applied', v_outcomes);
END
$body$""",
)
_DELETE_UNUSED = (
    "DELETE FROM dragoman_limit_counters_1 WHERE touched < (extract(epoch FROM "
    "clock_timestamp()) - 6048000) * 1000000"
)
"""Deletes counters that were not used for 70 days (6,048,000 s), which is longer than
any period of a limit.
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
                # Only the first server needs the privilege to create tables and
                # functions.
                if await connection.fetchval("SELECT to_regproc($1)::TEXT", _FUNCTION) is None:
                    for statement in _SCHEMA:
                        await connection.execute(statement)
                await connection.execute(_DELETE_UNUSED)
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
        locks = [*batch.list_keys(), batch.holder, *(batch.previous or ())[:1]]
        now = None if self._now is None else self._now()
        try:
            connection = self._connection
            if connection is None or connection.is_closed():
                connection = await self._connect()
            text: str = await connection.fetchval(
                f"SELECT {_FUNCTION}($1, $2, $3)::TEXT",
                msgspec.json.encode(batch).decode(),
                locks,
                now,
            )
        except _FAILURES as error:
            self._drop()
            raise _build_unavailable(error) from error
        except BaseException:
            # After a cancellation the connection may still receive the response, which
            # no later query must read.
            self._drop()
            raise
        # Not msgspec: the integers can exceed 64 bits.
        status, outcomes = json.loads(text)
        return BatchResult(
            BatchStatus(status),
            tuple(OperationOutcome(taken, tuple(used)) for taken, used in outcomes),
        )

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


def _build_unavailable(error: Exception) -> LimitsStoreUnavailable:
    # A TimeoutError has no text.
    return LimitsStoreUnavailable(
        f"PostgreSQL: {str(error) or f'no response within {_CONNECT_TIMEOUT:.0f} s'}"
    )
