"""The SQL of the stores in SQLite and PostgreSQL, independent of the driver.

Queries are generators that yield (statement, parameters) and receive the rows, so one
implementation serves a synchronous and an asynchronous driver. Parameters are `$1`,
`$2`, ...; values are never part of a statement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from .eviction import Evictions, OwnerUse
from .protocol import (
    Append,
    Bounds,
    Change,
    CommitConflict,
    Delete,
    Key,
    Put,
    Record,
    RecordChain,
    Remove,
    Replace,
    SeriesEntry,
    check_pinned_bytes,
    is_storable,
)

T = TypeVar("T")
Rows = Sequence[Sequence[Any]]
Query = tuple[str, tuple[object, ...]]
Steps = Generator[Query, Rows, T]

# Column types that differ: (placeholder, SQLite's type, PostgreSQL's type).
_TYPES = (
    (
        "SERIAL_KEY",
        "INTEGER PRIMARY KEY AUTOINCREMENT",
        "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    ),
    ("BYTES", "BLOB", "BYTEA"),
    ("REAL_NUMBER", "REAL", "DOUBLE PRECISION"),
)

_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE dragoman_records (
            position SERIAL_KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL,
            version BIGINT NOT NULL, created BIGINT NOT NULL, state TEXT NOT NULL, body BYTES NOT NULL,
            parent TEXT, run TEXT, expires REAL_NUMBER, pinned INTEGER NOT NULL,
            touched REAL_NUMBER NOT NULL, nbytes BIGINT NOT NULL, UNIQUE (owner, kind, id))""",
        "CREATE INDEX dragoman_pages ON dragoman_records (owner, kind, position)",
        "CREATE INDEX dragoman_used ON dragoman_records (touched, position, nbytes) WHERE pinned "
        "= 0 AND run IS NULL",
        "CREATE INDEX dragoman_expiring ON dragoman_records (expires) WHERE expires IS NOT NULL",
        "CREATE INDEX dragoman_pinned ON dragoman_records (nbytes) WHERE pinned = 1",
        "CREATE INDEX dragoman_working ON dragoman_records (run) WHERE run IS NOT NULL",
        "CREATE INDEX dragoman_sizes ON dragoman_records (nbytes)",
        """CREATE TABLE dragoman_entries (
            record BIGINT NOT NULL REFERENCES dragoman_records (position) ON DELETE CASCADE,
            series TEXT NOT NULL, position BIGINT NOT NULL, id TEXT, body BYTES NOT NULL,
            PRIMARY KEY (record, series, position), UNIQUE (record, series, id))""",
    ),
    # The records of each owner in order of use, and the pinned bytes of each.
    (
        "CREATE INDEX dragoman_evicted ON dragoman_records (owner, touched, position, nbytes) "
        "WHERE pinned = 0 AND run IS NULL",
        "DROP INDEX dragoman_pinned",
        "CREATE INDEX dragoman_pinned ON dragoman_records (owner, nbytes) WHERE pinned = 1",
    ),
)

SCHEMA_VERSION = len(_MIGRATIONS)


def list_migrations(from_version: int, *, postgres: bool) -> list[str]:
    """Return the statements that migrate a database from `from_version` to
    SCHEMA_VERSION.
    """
    statements = [statement for migration in _MIGRATIONS[from_version:] for statement in migration]
    for word, sqlite, postgresql in _TYPES:
        statements = [text.replace(word, postgresql if postgres else sqlite) for text in statements]
    return statements


_RECORD = "position, version, created, state, body, parent, run, expires, pinned"
_KEY = "owner = $1 AND kind = $2 AND id = $3"
# Every read filters expired records, which `clean` removes later. $4 is the time, $5
# the time minus the TTL.
_LIVE = "(expires IS NULL OR expires > $4) AND (pinned = 1 OR run IS NOT NULL OR touched > $5)"

_GET = f"SELECT {_RECORD} FROM dragoman_records WHERE {_KEY} AND {_LIVE}"
# An UPDATE, because SQLite has no SELECT ... FOR UPDATE: it takes the lock, counts as
# use and reads, in one statement.
_LOCK_RECORD = f"""UPDATE dragoman_records SET touched = $4 WHERE {_KEY} AND {_LIVE}
    RETURNING position, state, version, length(body), pinned"""
_INSERT = """INSERT INTO dragoman_records
    (owner, kind, id, version, created, state, body, parent, run, expires, pinned, touched, nbytes)
    VALUES ($1, $2, $3, 1, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT (owner, kind, id) DO NOTHING RETURNING position"""
_STATE = f"SELECT state FROM dragoman_records WHERE {_KEY}"
_REPLACE = """UPDATE dragoman_records SET state = $1, body = $2, run = $3, version = version + 1, nbytes = nbytes + $4
    WHERE position = $5"""
_SET_EXPIRY = "UPDATE dragoman_records SET expires = $1 WHERE position = $2"
_GROW = "UPDATE dragoman_records SET nbytes = nbytes + $1 WHERE position = $2"
_DELETE = "DELETE FROM dragoman_records WHERE position = $1"
_LAST_POSITION = (
    "SELECT coalesce(max(position), -1) FROM dragoman_entries WHERE record = $1 AND series = $2"
)
_APPEND = """INSERT INTO dragoman_entries (record, series, position, id, body) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (record, series, id) DO NOTHING RETURNING position"""
_REMOVE = (
    "DELETE FROM dragoman_entries WHERE record = $1 AND series = $2 AND id = $3 RETURNING "
    "length(body)"
)
# PostgreSQL sums bigints to numeric, which the driver returns as a Decimal.
_PINNED_BYTES = """SELECT owner, CAST(sum(nbytes) AS BIGINT) FROM dragoman_records
    WHERE pinned = 1 GROUP BY owner"""
# A parent is always older than its child (r.position < hop.position), so a chain has no
# cycles.
_CHAIN = f"""WITH RECURSIVE hop(position, parent) AS (
        SELECT position, parent FROM dragoman_records WHERE {_KEY} AND {_LIVE}
        UNION ALL
        SELECT r.position, r.parent FROM hop JOIN dragoman_records r
            ON r.owner = $1 AND r.kind = $2 AND r.id = hop.parent AND r.position < hop.position
        WHERE (r.expires IS NULL OR r.expires > $4) AND (r.pinned = 1 OR r.run IS NOT NULL OR r.touched > $5))
    SELECT r.id, r.position, r.version, r.created, r.state, r.body, r.parent, r.run, r.expires, r.pinned
    FROM hop JOIN dragoman_records r ON r.position = hop.position ORDER BY r.position"""
_PAGE = f"""SELECT id, {_RECORD} FROM dragoman_records WHERE owner = $1 AND kind = $2
    AND (expires IS NULL OR expires > $3) AND (pinned = 1 OR run IS NOT NULL OR touched > $4)"""
_PAGE_QUERIES = {
    True: f"{_PAGE} AND position < $5 ORDER BY position DESC LIMIT $6",
    False: f"{_PAGE} AND position > $5 ORDER BY position LIMIT $6",
}
_RECORD_OF = f"(SELECT position FROM dragoman_records WHERE {_KEY} AND {_LIVE})"
_SERIES = (
    f"SELECT position, body, id FROM dragoman_entries WHERE record = {_RECORD_OF} AND series = $6"
)
_ENTRY_QUERIES = {
    True: f"{_SERIES} AND position < $7 ORDER BY position DESC LIMIT $8",
    False: f"{_SERIES} AND position > $7 ORDER BY position LIMIT $8",
}
_ENTRY = f"{_SERIES} AND id = $7"
_RUNS = "SELECT DISTINCT run FROM dragoman_records WHERE run IS NOT NULL"
_RECORDS_OF_RUN = (
    f"SELECT owner, id, {_RECORD} FROM dragoman_records WHERE run = $1 AND kind = "
    f"$2 ORDER BY position LIMIT $3"
)
# Several processes write times of last use, and late: an older time must not overwrite
# a newer one.
_TOUCH = "UPDATE dragoman_records SET touched = $1 WHERE position = $2 AND touched < $1"
_EXPIRED = """DELETE FROM dragoman_records WHERE position IN (SELECT position FROM dragoman_records
    WHERE expires <= $1 OR (pinned = 0 AND run IS NULL AND touched <= $2) LIMIT $3) RETURNING position"""
_TOTAL_SIZE = "SELECT count(*), CAST(coalesce(sum(nbytes), 0) AS BIGINT) FROM dragoman_records"
_OWNER_USES = """SELECT owner, count(*), CAST(sum(nbytes) AS BIGINT) FROM dragoman_records
    WHERE pinned = 0 AND run IS NULL GROUP BY owner"""
_LEAST_USED = """SELECT position, nbytes FROM dragoman_records
    WHERE owner = $1 AND pinned = 0 AND run IS NULL ORDER BY touched, position LIMIT $2"""

# Cursors beyond all positions, within a BIGINT.
_AFTER_LAST = 2**62
_BEFORE_FIRST = -1


def apply_changes(
    changes: Sequence[Change], bounds: Bounds, owners: Collection[str], now: float
) -> Steps[None]:
    """Apply all changes, within a transaction that the driver manages. On any error the
    driver must roll back.

    owners: those that share the limit of pinned records.

    Raises:
        CommitConflict: a change does not fit the stored state.
        StoreFull: pinned records exceed their limit.
    """
    for change in changes:
        added_bytes = yield from _apply_change(change, bounds, now)
        # Checked after the change, within the transaction: two commits that fit only
        # alone cannot both pass.
        if added_bytes > 0:
            used: dict[str, int] = {owner: size for owner, size in (yield _PINNED_BYTES, ())}
            check_pinned_bytes(change.key.owner, used, bounds, owners)


def _apply_change(change: Change, bounds: Bounds, now: float) -> Steps[int]:
    """Apply a change; return the bytes that it adds to pinned records."""
    if isinstance(change, Put):
        return (yield from _insert_record(change, now))
    # Mark the record as used and lock it until the commit ends: the UPDATE takes the
    # row lock.
    key = change.key
    states = frozenset[str]() if isinstance(change, Remove) else change.states
    rows = (
        (yield _LOCK_RECORD, _build_live_parameters(key, bounds, now))
        if is_storable(key.id)
        else ()
    )
    if not rows or (states and rows[0][1] not in states):
        raise CommitConflict(change, rows[0][1] if rows else None)
    record, state, version, size, pinned = rows[0]
    added_bytes = 0
    match change:
        case Replace():
            if change.version not in (None, version):
                raise CommitConflict(change, state)
            added_bytes = len(change.body) - size
            yield _REPLACE, (change.state, change.body, change.run, added_bytes, record)
            if change.expires is not UNSET:
                yield _SET_EXPIRY, (change.expires, record)
        case Append():
            rows = yield _LAST_POSITION, (record, change.series)
            for position, item in enumerate(change.items, rows[0][0] + 1):
                storable = item.id is None or is_storable(item.id)
                if not storable or not (
                    yield _APPEND, (record, change.series, position, item.id, item.body)
                ):
                    raise CommitConflict(change, state)
            added_bytes = sum(len(item.body) for item in change.items)
            # The size is a column: summing all bodies for every commit would read the
            # whole store.
            yield _GROW, (added_bytes, record)
        case Remove():
            rows = (
                (yield _REMOVE, (record, change.series, change.id))
                if is_storable(change.id)
                else ()
            )
            if not rows:
                raise CommitConflict(change, None)
            yield _GROW, (-rows[0][0], record)
        case Delete():
            yield _DELETE, (record,)
    return added_bytes * pinned


def _insert_record(change: Put, now: float) -> Steps[int]:
    """Insert a record; return the bytes that it adds to pinned records."""
    key = _build_key_parameters(change.key)
    pinned = int(change.pinned)
    size = len(change.body)
    fields = (
        change.created,
        change.state,
        change.body,
        change.parent,
        change.run,
        change.expires,
        pinned,
    )
    if not (yield _INSERT, (*key, *fields, now, size)):
        # The key exists, possibly as an expired record, which blocks it until
        # `clean` removes it.
        rows = yield _STATE, key
        raise CommitConflict(change, rows[0][0] if rows else None)
    return size * pinned


def select_record(key: Key, bounds: Bounds, now: float) -> Steps[Record | None]:
    rows = (yield _GET, _build_live_parameters(key, bounds, now)) if is_storable(key.id) else ()
    return _build_record(key.owner, key.kind, (key.id, *rows[0])) if rows else None


def select_chain(key: Key, bounds: Bounds, now: float) -> Steps[RecordChain | None]:
    rows = (yield _CHAIN, _build_live_parameters(key, bounds, now)) if is_storable(key.id) else ()
    records = tuple(_build_record(key.owner, key.kind, row) for row in rows)
    return RecordChain(records, is_complete=records[0].parent is None) if records else None


def select_page(
    owner: str,
    kind: str,
    after: int | None,
    limit: int,
    descending: bool,
    bounds: Bounds,
    now: float,
) -> Steps[tuple[Record, ...]]:
    cursor = _resolve_cursor(after, descending)
    rows = yield (
        _PAGE_QUERIES[descending],
        (owner, kind, now, now - bounds.ttl, cursor, max(0, limit)),
    )
    return tuple(_build_record(owner, kind, row) for row in rows)


def select_entries(
    key: Key,
    series: str,
    after: int | None,
    limit: int,
    descending: bool,
    bounds: Bounds,
    now: float,
) -> Steps[tuple[SeriesEntry, ...]]:
    parameters = (
        *_build_live_parameters(key, bounds, now),
        series,
        _resolve_cursor(after, descending),
        max(0, limit),
    )
    rows = (yield _ENTRY_QUERIES[descending], parameters) if is_storable(key.id) else ()
    return tuple(SeriesEntry(*row) for row in rows)


def select_entry(
    key: Key, series: str, id: str, bounds: Bounds, now: float
) -> Steps[SeriesEntry | None]:
    is_valid = is_storable(key.id) and is_storable(id)
    rows = (
        (yield _ENTRY, (*_build_live_parameters(key, bounds, now), series, id)) if is_valid else ()
    )
    return SeriesEntry(*rows[0]) if rows else None


def select_runs() -> Steps[list[str]]:
    """Return all runs that records name."""
    rows = yield _RUNS, ()
    return [row[0] for row in rows]


def select_run_records(run: str, kind: str, limit: int) -> Steps[list[Record]]:
    rows = yield _RECORDS_OF_RUN, (run, kind, limit)
    return [_build_record(row[0], kind, row[1:]) for row in rows]


def update_touched(touches: Iterable[tuple[int, float]]) -> Steps[None]:
    """Store the times of last use of the records at these positions. Sorted, so that
    processes do not deadlock.
    """
    for position, touched in sorted(touches):
        yield _TOUCH, (touched, position)


def delete_surplus(limit: int, bounds: Bounds, now: float) -> Steps[int]:
    """Remove expired records, then, while bounds are exceeded, the least recently used
    ones of the owner with the most; return the number removed.
    """
    removed = len((yield _EXPIRED, (now, now - bounds.ttl, max(0, limit))))
    count, size = (yield _TOTAL_SIZE, ())[0]
    if count <= bounds.records and size <= bounds.nbytes:
        return removed
    uses = [OwnerUse(*row) for row in (yield _OWNER_USES, ())]
    evictions = Evictions(uses, count - bounds.records, size - bounds.nbytes)
    oldest: dict[str, deque[Sequence[Any]]] = {}
    while removed < limit and (owner := evictions.choose_owner()) is not None:
        if owner not in oldest:
            oldest[owner] = deque((yield _LEAST_USED, (owner, limit - removed)))
        # Another process has deleted records since they were counted.
        if not oldest[owner]:
            break
        position, nbytes = oldest[owner].popleft()
        yield _DELETE, (position,)
        evictions.count(nbytes)
        removed += 1
    return removed


def _build_key_parameters(key: Key) -> tuple[str, str, str]:
    return key.owner, key.kind, key.id


def _build_live_parameters(key: Key, bounds: Bounds, now: float) -> tuple[object, ...]:
    return *_build_key_parameters(key), now, now - bounds.ttl


def _resolve_cursor(cursor: int | None, descending: bool) -> int:
    if cursor is None:
        return _AFTER_LAST if descending else _BEFORE_FIRST
    return cursor


def _build_record(owner: str, kind: str, row: Sequence[Any]) -> Record:
    id, position, version, created, state, body, parent, run, expires, pinned = row
    return Record(
        Key(owner, kind, id),
        position,
        version,
        created,
        state,
        body,
        parent,
        run,
        expires,
        pinned=bool(pinned),
    )
