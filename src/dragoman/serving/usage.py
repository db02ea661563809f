"""Usage by key, model and hour: counted in memory, stored every second, and read back after a restart.

Several processes may share a store: each adds what it has counted to the stored hour, and so learns what the others
have counted. What a process counted since its last write is lost if it is killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..store import CommitConflict, Key, Put, Record, Replace, Store

log = logging.getLogger(__name__)

OWNER = "dragoman.usage"
"""The owner of the records; no key has it, since names of owners have no dot (`key_...`, digests)."""
KIND = "usage"
HOUR = 3600
RETENTION = 400 * 86400
"""Seconds for which usage is stored."""
FLUSH_INTERVAL = 1.0
MAX_CONFLICTS = 20
PAGE = 100


class UsageKey(Struct, frozen=True, order=True):
    """The dimensions by which usage is counted.

    kind: `completions` or `embeddings`, as in OpenAI's usage routes.
    name: of the key, for people.
    is_batch: no client waited for the response.
    """

    owner: str
    name: str
    kind: str
    model: str
    is_batch: bool


class UsageCounts(Struct):
    """Requests and tokens. input: prompt tokens, cached ones included."""

    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0

    def add(self, other: UsageCounts) -> None:
        self.requests += other.requests
        self.input += other.input
        self.cached += other.cached
        self.output += other.output

    @property
    def tokens(self) -> int:
        return self.input + self.output


HourUsage = dict[UsageKey, UsageCounts]


class _Entry(Struct, frozen=True):
    key: UsageKey
    counts: UsageCounts


def start_of_day(now: float) -> int:
    """Unix time of the last midnight, UTC."""
    return int(now) // 86400 * 86400


def start_of_month(now: float) -> int:
    return int(datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp())


def end_of_month(now: float) -> int:
    # 32 days after the first of a month is in the next.
    return start_of_month(start_of_month(now) + 32 * 86400)


class UsageLedger:
    """Usage since the start of the month, and its records. A `lifespan.LifespanResource`, within the store's.

    store: shared with everything else.
    now: Unix seconds.
    """

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store, self._now = store, now
        self._pending: dict[int, HourUsage] = {}
        self._stored_tokens: dict[int, Counter[str]] = {}
        """Tokens by owner of each hour of this month, as they were stored when it was last read or written."""
        self._sums: Counter[tuple[str, str, int]] = Counter()
        """Tokens by owner, `day` or `month`, and its start."""
        self._flush_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def open(self) -> None:
        month = start_of_month(self._now())
        async for record in self._iterate_records():
            hour = int(record.key.id)
            # A day earlier, since clock changes can have changed the order of the records, as in `read`.
            if hour < month - 86400:
                break
            if hour >= month:
                self._note_stored(hour, _decode(record), own={})
        self._stop.clear()
        self._task = asyncio.create_task(self._flush_forever())

    async def close(self) -> None:
        """Store everything, unless the store fails."""
        self._stop.set()
        if self._task is not None:
            await self._task
        await self.flush()
        if self._pending:
            log.error("usage of the last seconds could not be stored")

    def record(self, key: UsageKey, counts: UsageCounts) -> None:
        hour = int(self._now()) // HOUR * HOUR
        self._pending.setdefault(hour, {}).setdefault(key, UsageCounts()).add(counts)
        self._add_to_sums(hour, key.owner, counts.tokens)

    def count_tokens_of_day(self, owner: str) -> int:
        return self._sums[owner, "day", start_of_day(self._now())]

    def count_tokens_of_month(self, owner: str) -> int:
        return self._sums[owner, "month", start_of_month(self._now())]

    async def read(self, start: int, end: int) -> list[tuple[int, HourUsage]]:
        """The hours that begin in this time, in order; those without usage are absent."""
        # A cancelled flush would neither have stored what it had taken out, nor know whether it had.
        await asyncio.shield(self.flush())
        hours: dict[int, HourUsage] = {}
        async for record in self._iterate_records():
            hour = int(record.key.id)
            # Records are in the order of their first write, which is that of their hours but for clock changes.
            if hour < start - 86400:
                break
            if start <= hour < end:
                hours[hour] = _decode(record)
        # What could not be stored.
        for hour, usage in self._pending.items():
            if start <= hour < end:
                _merge(hours.setdefault(hour, {}), usage)
        return sorted(hours.items())

    async def flush(self) -> None:
        """Add what is counted to the stored hours. What the store does not accept is tried again at the next time."""
        async with self._flush_lock:
            for hour in sorted(self._pending):
                # Taken out first: what is counted while the store writes belongs to the next flush.
                usage = self._pending.pop(hour)
                try:
                    merged = await self._add_to_record(hour, usage)
                # The store has logged its errors.
                except (DragomanError, CommitConflict):
                    _merge(self._pending.setdefault(hour, {}), usage)
                    continue
                self._note_stored(hour, merged, own=usage)

    async def _flush_forever(self) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(FLUSH_INTERVAL):
                    await self._stop.wait()
            except TimeoutError:
                await self.flush()

    async def _add_to_record(self, hour: int, usage: HourUsage) -> HourUsage:
        """Add usage to the record of an hour, which other processes may change at the same time; return the result."""
        key = Key(OWNER, KIND, str(hour))
        for attempt in range(MAX_CONFLICTS):
            record = await self._store.get(key)
            merged: HourUsage = {} if record is None else _decode(record)
            _merge(merged, usage)
            body = msgspec.json.encode([_Entry(*item) for item in sorted(merged.items(), key=lambda item: item[0])])
            try:
                if record is None:
                    # Pinned: responses may be evicted for lack of space, but not what customers are billed by.
                    await self._store.commit(Put(key, hour, body, expires=hour + RETENTION, pinned=True))
                else:
                    await self._store.commit(Replace(key, "", body, version=record.version))
            except CommitConflict:
                if attempt == MAX_CONFLICTS - 1:
                    raise
                continue
            return merged
        raise AssertionError

    def _note_stored(self, hour: int, stored: HourUsage, *, own: HourUsage) -> None:
        """Take over what others have counted in an hour. own: what this process had counted and has now stored."""
        known, found = self._stored_tokens.get(hour, Counter()), _sum_by_owner(stored.items())
        own_tokens = _sum_by_owner(own.items())
        for owner, tokens in found.items():
            # What the record has more than this process knew, less what it has just added itself: that of other
            # processes.
            foreign = tokens - known[owner] - own_tokens[owner]
            if foreign:
                self._add_to_sums(hour, owner, foreign)
        self._stored_tokens[hour] = found
        month = start_of_month(self._now())
        for old in [each for each in self._stored_tokens if each < month]:
            del self._stored_tokens[old]
        for old in [each for each in self._sums if each[2] < month]:
            del self._sums[old]

    def _add_to_sums(self, hour: int, owner: str, tokens: int) -> None:
        self._sums[owner, "day", start_of_day(hour)] += tokens
        self._sums[owner, "month", start_of_month(hour)] += tokens

    async def _iterate_records(self) -> AsyncGenerator[Record]:
        """The stored hours, latest first."""
        cursor: int | None = None
        while page := await self._store.load_page(OWNER, KIND, after=cursor, limit=PAGE):
            for record in page:
                yield record
            cursor = page[-1].position


def _decode(record: Record) -> HourUsage:
    return {entry.key: entry.counts for entry in msgspec.json.decode(record.body, type=list[_Entry])}


def _merge(into: HourUsage, usage: HourUsage) -> None:
    for key, counts in usage.items():
        into.setdefault(key, UsageCounts()).add(counts)


def _sum_by_owner(items: Iterable[tuple[UsageKey, UsageCounts]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for key, counts in items:
        sums[key.owner] += counts.tokens
    return sums
