"""The store that forgets with its process: for tests and `--store memory`, and what the others must behave like."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from .base import (
    Append,
    Bounds,
    Chain,
    Change,
    Delete,
    Entry,
    Item,
    Key,
    Put,
    Record,
    Refused,
    Remove,
    Replace,
    StoreFull,
    is_plain,
)

Undo = Callable[[], object]


@dataclass(slots=True)
class _Kept:
    """A record as it is now. touched: Unix seconds of the last use."""

    record: Record
    touched: float
    nbytes: int
    series: dict[str, dict[int, Entry]] = field(default_factory=dict[str, dict[int, Entry]])
    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


class MemoryStore:
    """Everything happens between two awaits, so that nothing else can be seen half done."""

    def __init__(self, bounds: Bounds | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._bounds, self._now = bounds or Bounds(), now
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        """In order of last use, the longest unused first."""
        self._nbytes = self._pinned = self._last_position = 0
        self._run = "run_" + secrets.token_hex(16)

    @property
    def run(self) -> str:
        return self._run

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        self._kept.clear()
        self._nbytes = self._pinned = 0

    async def commit(self, *changes: Change) -> None:
        undo: list[Undo] = []
        try:
            for change in changes:
                self._apply(change, undo)
        except (Refused, StoreFull):
            for step in reversed(undo):
                step()
            raise
        for change in changes:
            self._use(change.key)

    async def get(self, key: Key) -> Record | None:
        kept = self._alive(key)
        if kept is None:
            return None
        self._use(key)
        return kept.record

    async def chain(self, key: Key) -> Chain | None:
        kept = self._alive(key)
        if kept is None:
            return None
        hops = [kept.record]
        while hops[-1].parent is not None:
            parent = self._alive(replace(key, id=hops[-1].parent))
            if parent is None or parent.record.position >= hops[-1].position:
                break
            hops.append(parent.record)
        hops.reverse()
        for hop in hops:
            self._use(hop.key)
        return Chain(tuple(hops), whole=hops[0].parent is None)

    async def page(
        self, owner: str, kind: str, *, after: int | None = None, limit: int = 20, descending: bool = True
    ) -> tuple[Record, ...]:
        found = (
            kept.record
            for key, kept in self._kept.items()
            if key.owner == owner and key.kind == kind and self._lives(kept)
        )
        ordered = sorted(found, key=lambda record: record.position, reverse=descending)
        return tuple(islice((each for each in ordered if _behind(each.position, after, descending)), max(0, limit)))

    async def entries(
        self, key: Key, series: str, *, after: int | None = None, limit: int = 100, descending: bool = False
    ) -> tuple[Entry, ...]:
        kept = self._alive(key)
        listed: Iterable[Entry] = () if kept is None else kept.series.get(series, {}).values()
        ordered = reversed(tuple(listed)) if descending else listed
        return tuple(islice((each for each in ordered if _behind(each.position, after, descending)), max(0, limit)))

    async def entry(self, key: Key, series: str, id: str) -> Entry | None:
        kept = self._alive(key)
        position = None if kept is None else kept.ids.get((series, id))
        return None if kept is None or position is None else kept.series[series][position]

    async def lapsed(self, kind: str, limit: int = 100) -> tuple[Record, ...]:
        records = (kept.record for key, kept in self._kept.items() if key.kind == kind)
        found = (record for record in records if record.run not in (None, self._run))
        return tuple(sorted(found, key=lambda record: record.position)[:limit])

    async def clean(self, limit: int = 256) -> int:
        gone = [key for key, kept in self._kept.items() if not self._lives(kept)][:limit]
        for key in gone:
            self._drop(key)
        for key in [key for key, kept in self._kept.items() if _evictable(kept)] if self._over else ():
            if len(gone) >= limit or not self._over:
                break
            self._drop(key)
            gone.append(key)
        return len(gone)

    @property
    def _over(self) -> bool:
        return len(self._kept) > self._bounds.records or self._nbytes > self._bounds.nbytes

    def _apply(self, change: Change, undo: list[Undo]) -> None:
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
                self._expect(change, states)
                kept = self._drop(key)
                undo.append(lambda: self._keep(kept))

    def _put(self, change: Put, undo: list[Undo]) -> None:
        there = self._kept.get(change.key)
        if there is not None:
            raise Refused(change, there.record.state)
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
        self._keep(_Kept(record, self._now(), len(change.body)))
        undo.append(lambda: self._drop(change.key))
        self._check_room(record)

    def _replace(self, change: Replace, undo: list[Undo]) -> None:
        kept = self._expect(change, change.states)
        old = kept.record
        if change.version not in (None, old.version):
            raise Refused(change, old.state)
        kept.record = replace(old, state=change.state, body=change.body, run=change.run, version=old.version + 1)
        undo.append(lambda: setattr(kept, "record", old))
        self._grow(kept, len(change.body) - len(old.body), undo)

    def _append(self, change: Append, undo: list[Undo]) -> None:
        kept = self._expect(change, change.states)
        series = kept.series.setdefault(change.series, {})
        for item in change.items:
            if item.id is not None and ((change.series, item.id) in kept.ids or not is_plain(item.id)):
                raise Refused(change, kept.record.state)
            undo.append(_add(kept, change.series, series, item))
        self._grow(kept, sum(len(item.body) for item in change.items), undo)

    def _remove(self, change: Remove, undo: list[Undo]) -> None:
        kept = self._expect(change, frozenset())
        position = kept.ids.pop((change.series, change.id), None)
        if position is None:
            raise Refused(change, None)
        series = kept.series[change.series]
        gone = series.pop(position)

        def restore() -> None:
            kept.ids[change.series, change.id] = position
            whole = sorted((*series.items(), (position, gone)))
            series.clear()
            series.update(whole)

        undo.append(restore)
        self._grow(kept, -len(gone.body), undo)

    def _expect(self, change: Change, states: frozenset[str]) -> _Kept:
        kept = self._alive(change.key)
        if kept is None:
            raise Refused(change, None)
        if states and kept.record.state not in states:
            raise Refused(change, kept.record.state)
        return kept

    def _grow(self, kept: _Kept, by: int, undo: list[Undo]) -> None:
        self._count(kept, by)
        undo.append(lambda: self._count(kept, -by))
        if by > 0:
            self._check_room(kept.record)

    def _count(self, kept: _Kept, by: int) -> None:
        kept.nbytes += by
        self._nbytes += by
        self._pinned += by if kept.record.pinned else 0

    def _check_room(self, record: Record) -> None:
        if record.pinned and self._pinned > self._bounds.nbytes // 2:
            raise StoreFull("The store is full; delete files and batches that are no longer needed.")

    def _keep(self, kept: _Kept) -> None:
        self._kept[kept.record.key] = kept
        self._nbytes += kept.nbytes
        self._pinned += kept.nbytes if kept.record.pinned else 0

    def _drop(self, key: Key) -> _Kept:
        kept = self._kept.pop(key)
        self._nbytes -= kept.nbytes
        self._pinned -= kept.nbytes if kept.record.pinned else 0
        return kept

    def _alive(self, key: Key) -> _Kept | None:
        kept = self._kept.get(key)
        return kept if kept is not None and self._lives(kept) else None

    def _lives(self, kept: _Kept) -> bool:
        record, now = kept.record, self._now()
        if record.expires is not None and record.expires <= now:
            return False
        return not _evictable(kept) or kept.touched > now - self._bounds.ttl

    def _use(self, key: Key) -> None:
        kept = self._kept.get(key)
        if kept is not None:
            kept.touched = self._now()
            self._kept.move_to_end(key)


def _evictable(kept: _Kept) -> bool:
    return not kept.record.pinned and kept.record.run is None


def _add(kept: _Kept, name: str, series: dict[int, Entry], item: Item) -> Undo:
    position = next(reversed(series), -1) + 1
    series[position] = Entry(position, item.body, item.id)
    if item.id is not None:
        kept.ids[name, item.id] = position

    def undo() -> None:
        del series[position]
        if item.id is not None:
            del kept.ids[name, item.id]

    return undo


def _behind(position: int, after: int | None, descending: bool) -> bool:
    if after is None:
        return True
    return position < after if descending else position > after
