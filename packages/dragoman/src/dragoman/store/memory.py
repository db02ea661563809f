"""The in-memory store, for tests and `--store memory`; it is the reference for the
behavior of the others.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import islice

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from .deletion_clock import DeletionClock
from .eviction import Evictions, OwnerUse
from .protocol import (
    HEALTHY,
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
    StoreFull,
    StoreHealth,
    check_pinned_bytes,
    is_storable,
)

Undo = Callable[[], object]


class _StoredRecord(Struct):
    """A stored record with its entries.

    touched: time of the last use, in Unix seconds.
    nbytes: size of the body and of all entries.
    series: entries by position, by name of the series.
    ids: positions of entries by series and id.
    """

    record: Record
    touched: float
    nbytes: int
    series: dict[str, dict[int, SeriesEntry]] = field(
        default_factory=dict[str, dict[int, SeriesEntry]]
    )
    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


class MemoryStore:
    """An in-memory store. Every operation completes without awaiting, which makes it
    atomic.
    """

    def __init__(
        self,
        bounds: Bounds | None = None,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        """monotonic: the clock that tells a jump of `now`; None trusts it."""
        self._bounds = bounds or Bounds()
        self._now = now
        self._deletion_clock = DeletionClock(now, monotonic or now)
        self._records: OrderedDict[Key, _StoredRecord] = OrderedDict()
        """Records, least recently used first."""
        self._nbytes = self._last_position = 0
        self._pinned_bytes: Counter[str] = Counter()
        """Bytes of the pinned records of each owner."""
        self._list_owners: Callable[[], Collection[str]] = tuple
        self._run = "run_" + secrets.token_hex(16)

    @property
    def run(self) -> str:
        return self._run

    def share(self, list_owners: Callable[[], Collection[str]]) -> None:
        self._list_owners = list_owners

    async def check_health(self) -> StoreHealth:
        return HEALTHY

    async def open(self) -> None:
        """Does nothing: memory needs no opening."""

    async def close(self) -> None:
        self._records.clear()
        self._nbytes = 0
        self._pinned_bytes.clear()

    async def commit(self, *changes: Change) -> None:
        undo: list[Undo] = []
        try:
            for change in changes:
                match change:
                    case Put():
                        self._put(change, undo)
                    case Replace():
                        self._replace(change, undo)
                    case Append():
                        self._append(change, undo)
                    case Remove():
                        self._remove(change, undo)
                    case Delete(key, states):
                        self._require(change, states)
                        undo.append(partial(self._insert, self._drop(key)))
        except (CommitConflict, StoreFull):
            # In reverse order: a later change may depend on an earlier one.
            for step in reversed(undo):
                step()
            raise
        for change in changes:
            self._touch(change.key)

    async def get(self, key: Key) -> Record | None:
        stored = self._find_live(key)
        if stored is None:
            return None
        self._touch(key)
        return stored.record

    async def load_chain(self, key: Key) -> RecordChain | None:
        stored = self._find_live(key)
        if stored is None:
            return None
        hops = [stored.record]
        while hops[-1].parent is not None:
            parent = self._find_live(replace(key, id=hops[-1].parent))
            # A parent is always older. A newer record with its id was created after the
            # parent was deleted.
            if parent is None or parent.record.position >= hops[-1].position:
                break
            hops.append(parent.record)
        hops.reverse()
        for hop in hops:
            self._touch(hop.key)
        return RecordChain(tuple(hops), is_complete=hops[0].parent is None)

    async def load_page(
        self,
        owner: str,
        kind: str,
        *,
        after: int | None = None,
        limit: int = 20,
        descending: bool = True,
    ) -> tuple[Record, ...]:
        records = (
            stored.record
            for key, stored in self._records.items()
            if key.owner == owner and key.kind == kind and self._is_live(stored)
        )
        ordered = sorted(records, key=lambda record: record.position, reverse=descending)
        return tuple(
            islice(
                (
                    candidate
                    for candidate in ordered
                    if _is_beyond(candidate.position, after, descending)
                ),
                max(0, limit),
            )
        )

    async def load_entries(
        self,
        key: Key,
        series: str,
        *,
        after: int | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> tuple[SeriesEntry, ...]:
        stored = self._find_live(key)
        all_entries: Iterable[SeriesEntry] = (
            () if stored is None else stored.series.get(series, {}).values()
        )
        ordered = reversed(tuple(all_entries)) if descending else all_entries
        return tuple(
            islice(
                (
                    candidate
                    for candidate in ordered
                    if _is_beyond(candidate.position, after, descending)
                ),
                max(0, limit),
            )
        )

    async def load_entry(self, key: Key, series: str, id: str) -> SeriesEntry | None:
        stored = self._find_live(key)
        position = None if stored is None else stored.ids.get((series, id))
        return None if stored is None or position is None else stored.series[series][position]

    async def list_abandoned(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        records = (stored.record for key, stored in self._records.items() if key.kind == kind)
        abandoned = (record for record in records if record.run not in (None, self._run))
        return tuple(sorted(abandoned, key=lambda record: record.position)[:limit])

    async def clean(self, limit: int = 256) -> int:
        now = self._deletion_clock.read()
        removed = [key for key, stored in self._records.items() if not self._is_live(stored, now)][
            :limit
        ]
        for key in removed:
            self._drop(key)
        if len(self._records) > self._bounds.records or self._nbytes > self._bounds.nbytes:
            removed += self._evict(limit - len(removed))
        return len(removed)

    def _evict(self, limit: int) -> list[Key]:
        oldest: dict[str, deque[_StoredRecord]] = {}
        for key, stored in self._records.items():
            if _is_evictable(stored):
                oldest.setdefault(key.owner, deque()).append(stored)
        evictions = Evictions(
            (
                OwnerUse(owner, len(records), sum(stored.nbytes for stored in records))
                for owner, records in oldest.items()
            ),
            len(self._records) - self._bounds.records,
            self._nbytes - self._bounds.nbytes,
        )
        evicted: list[Key] = []
        while len(evicted) < limit and (owner := evictions.choose_owner()) is not None:
            stored = self._drop(oldest[owner].popleft().record.key)
            evictions.count(stored.nbytes)
            evicted.append(stored.record.key)
        return evicted

    def _put(self, change: Put, undo: list[Undo]) -> None:
        existing = self._records.get(change.key)
        if existing is not None:
            raise CommitConflict(change, existing.record.state)
        self._last_position += 1
        record = Record(
            key=change.key,
            position=self._last_position,
            version=1,
            created=change.created,
            state=change.state,
            body=change.body,
            parent=change.parent,
            run=change.run,
            expires=change.expires,
            pinned=change.pinned,
        )
        self._insert(_StoredRecord(record, self._now(), len(change.body)))
        undo.append(lambda: self._drop(change.key))
        self._check_pinned_bytes(record)

    def _replace(self, change: Replace, undo: list[Undo]) -> None:
        stored = self._require(change, change.states)
        old = stored.record
        if change.version not in (None, old.version):
            raise CommitConflict(change, old.state)
        stored.record = replace(
            old,
            state=change.state,
            body=change.body,
            run=change.run,
            version=old.version + 1,
            expires=old.expires if change.expires is UNSET else change.expires,
        )
        undo.append(lambda: setattr(stored, "record", old))
        self._grow(stored, len(change.body) - len(old.body), undo)

    def _append(self, change: Append, undo: list[Undo]) -> None:
        stored = self._require(change, change.states)
        series = stored.series.setdefault(change.series, {})
        for item in change.items:
            if item.id is not None and (
                (change.series, item.id) in stored.ids or not is_storable(item.id)
            ):
                raise CommitConflict(change, stored.record.state)
            # After the last remaining entry, as in SQL, not by length: removed entries
            # leave gaps, and cursors must stay valid.
            position = next(reversed(series), -1) + 1
            series[position] = SeriesEntry(position, item.body, item.id)
            undo.append(partial(series.__delitem__, position))
            if item.id is not None:
                stored.ids[change.series, item.id] = position
                undo.append(partial(stored.ids.__delitem__, (change.series, item.id)))
        self._grow(stored, sum(len(item.body) for item in change.items), undo)

    def _remove(self, change: Remove, undo: list[Undo]) -> None:
        stored = self._require(change, frozenset())
        position = stored.ids.pop((change.series, change.id), None)
        if position is None:
            raise CommitConflict(change, None)
        series = stored.series[change.series]
        removed = series.pop(position)

        def restore() -> None:
            stored.ids[change.series, change.id] = position
            # A dict keeps the order of insertion, so a restored entry must be sorted
            # in.
            restored = sorted((*series.items(), (position, removed)))
            series.clear()
            series.update(restored)

        undo.append(restore)
        self._grow(stored, -len(removed.body), undo)

    def _require(self, change: Change, states: frozenset[str]) -> _StoredRecord:
        stored = self._find_live(change.key)
        if stored is None:
            raise CommitConflict(change, None)
        if states and stored.record.state not in states:
            raise CommitConflict(change, stored.record.state)
        return stored

    def _grow(self, stored: _StoredRecord, num_bytes: int, undo: list[Undo]) -> None:
        self._adjust_size(stored, num_bytes)
        undo.append(lambda: self._adjust_size(stored, -num_bytes))
        if num_bytes > 0:
            self._check_pinned_bytes(stored.record)

    def _adjust_size(self, stored: _StoredRecord, num_bytes: int) -> None:
        stored.nbytes += num_bytes
        self._nbytes += num_bytes
        self._count_pinned(stored.record, num_bytes)

    def _count_pinned(self, record: Record, num_bytes: int) -> None:
        if record.pinned:
            self._pinned_bytes[record.key.owner] += num_bytes

    def _check_pinned_bytes(self, record: Record) -> None:
        if record.pinned:
            check_pinned_bytes(
                record.key.owner, self._pinned_bytes, self._bounds, self._list_owners()
            )

    def _insert(self, stored: _StoredRecord) -> None:
        self._records[stored.record.key] = stored
        self._nbytes += stored.nbytes
        self._count_pinned(stored.record, stored.nbytes)

    def _drop(self, key: Key) -> _StoredRecord:
        stored = self._records.pop(key)
        self._nbytes -= stored.nbytes
        self._count_pinned(stored.record, -stored.nbytes)
        return stored

    def _find_live(self, key: Key) -> _StoredRecord | None:
        stored = self._records.get(key)
        return stored if stored is not None and self._is_live(stored) else None

    def _is_live(self, stored: _StoredRecord, now: float | None = None) -> bool:
        record = stored.record
        now = self._now() if now is None else now
        if record.expires is not None and record.expires <= now:
            return False
        return not _is_evictable(stored) or stored.touched > now - self._bounds.ttl

    def _touch(self, key: Key) -> None:
        stored = self._records.get(key)
        if stored is not None:
            stored.touched = self._now()
            self._records.move_to_end(key)


def _is_evictable(stored: _StoredRecord) -> bool:
    return not stored.record.pinned and stored.record.run is None


def _is_beyond(position: int, cursor: int | None, descending: bool) -> bool:
    if cursor is None:
        return True
    return position < cursor if descending else position > cursor
