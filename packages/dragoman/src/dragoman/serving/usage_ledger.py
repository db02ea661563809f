"""The ledger of usage by key, model, hour: counted in memory, stored every second.

Several processes may share a store: each adds its counts to the record of the hour, and
so learns those of the others. If a process is killed, the counts since its last write
are lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache

import msgspec
from msgspec import Struct

from ..store import CommitConflict, Key, Put, Record, Replace, Store

log = logging.getLogger(__name__)

OWNER = "dragoman.usage"
"""The owner of the records. It cannot be the owner of a key: those have no dot
(`key_...`, digests).
"""
KIND = "usage"
HOUR = 3600
RETENTION = 400 * 86400
"""Seconds for which usage is stored."""
FLUSH_INTERVAL = 1.0
"""Seconds between writes to the store."""
MAX_ATTEMPTS = 20
"""Attempts to update a record that other processes change at the same time."""
PAGE = 100
"""Records per page when reading."""


class UsageKey(Struct, frozen=True, order=True):
    """The dimensions by which usage is counted.

    owner: owner of the key, as in the store.
    name: the key's display name.
    kind: `completions`, `embeddings` or `audio_transcriptions`, as in OpenAI's usage
        routes.
    model: name of the model.
    is_batch: no client waited for the response.
    """

    owner: str
    name: str
    kind: str
    model: str
    is_batch: bool


class UsageCounts(Struct):
    """Numbers of requests and tokens.

    input: prompt tokens, including cached ones.
    cached: prompt tokens from the prefix cache.
    output: generated tokens.
    """

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
    """Return the Unix time of the last midnight, UTC."""
    return int(now) // 86400 * 86400


def start_of_month(now: float) -> int:
    """Return the Unix time of the first midnight of the month, UTC."""
    return _find_month_of_day(int(now) // 86400)


@lru_cache(maxsize=64)  # Nearly every call asks for the same day.
def _find_month_of_day(day: int) -> int:
    return int(datetime.fromtimestamp(day * 86400, UTC).replace(day=1).timestamp())


def end_of_month(now: float) -> int:
    # 32 days after the first of a month is always in the next month.
    return start_of_month(start_of_month(now) + 32 * 86400)


class UsageLedger:
    """The usage of this month in memory, and its records in the store.

    It is a `lifespan.LifespanResource`, opened after the store and closed before it.

    store: the server's store.
    now: returns the Unix time in seconds.
    """

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._pending: dict[int, HourUsage] = {}
        self._stored_tokens: dict[int, Counter[str]] = {}
        """Tokens by owner, for each hour of this month, as last read from or written to
        the store.
        """
        self._sums: Counter[tuple[str, str, int]] = Counter()
        """Tokens by owner, `day` or `month`, and start of that period."""
        self._failed_hours: set[int] = set()
        """Hours with counts that could not be stored. Each failure is logged once."""
        self._flush_lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def open(self) -> None:
        month = start_of_month(self._now())
        async for record in self._iterate_records():
            hour = int(record.key.id)
            # Read one more day: clock changes may have affected the order of the
            # records, as in `load_hours`.
            if hour < month - 86400:
                break
            if hour >= month:
                self._note_stored(hour, _decode(record), own={})
        self._stop.clear()
        self._task = asyncio.create_task(self._flush_forever())

    async def close(self) -> None:
        """Stop the periodic flush, and store what is pending."""
        self._stop.set()
        if self._task is not None:
            await self._task
        await self.flush()
        if self._pending:
            log.error("the latest usage could not be stored, and is lost")

    def record(self, key: UsageKey, counts: UsageCounts) -> None:
        hour = int(self._now()) // HOUR * HOUR
        self._pending.setdefault(hour, {}).setdefault(key, UsageCounts()).add(counts)
        self._add_to_sums(hour, key.owner, counts.tokens)

    def get_tokens_today(self, owner: str) -> int:
        return self._sums[owner, "day", start_of_day(self._now())]

    def get_tokens_this_month(self, owner: str) -> int:
        return self._sums[owner, "month", start_of_month(self._now())]

    async def load_hours(self, start: int, end: int) -> list[tuple[int, HourUsage]]:
        """Return the usage of the hours that begin within [start, end), in order; hours
        without usage are absent.
        """
        # Shielded: a cancelled flush would lose the counts that it has removed from
        #     `_pending`.
        await asyncio.shield(self.flush())
        hours: dict[int, HourUsage] = {}
        async for record in self._iterate_records():
            hour = int(record.key.id)
            # Records are in order of their first write: the order of their hours, apart
            # from clock changes.
            if hour < start - 86400:
                break
            if start <= hour < end:
                hours[hour] = _decode(record)
        # Counts that could not be stored yet.
        for hour, usage in self._pending.items():
            if start <= hour < end:
                _merge(hours.setdefault(hour, {}), usage)
        return sorted(hours.items())

    async def flush(self) -> None:
        """Add the pending counts to the stored hours. Counts that the store does not
        accept stay pending.
        """
        async with self._flush_lock:
            for hour in sorted(self._pending):
                # Removed first: what is counted during the write belongs to the next
                # flush.
                usage = self._pending.pop(hour)
                try:
                    merged = await self._add_to_record(hour, usage)
                # Catch anything, such as a record that cannot be decoded: an exception
                # would lose these counts, and end the task that flushes.
                except Exception:
                    _merge(self._pending.setdefault(hour, {}), usage)
                    if hour not in self._failed_hours:
                        self._failed_hours.add(hour)
                        log.exception(
                            "usage could not be stored; trying again every %.0f s", FLUSH_INTERVAL
                        )
                    continue
                self._failed_hours.discard(hour)
                self._note_stored(hour, merged, own=usage)

    async def _flush_forever(self) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(FLUSH_INTERVAL):
                    await self._stop.wait()
            except TimeoutError:
                await self.flush()

    async def _add_to_record(self, hour: int, usage: HourUsage) -> HourUsage:
        """Add usage to the record of an hour, which other processes may change at the
        same time; return the result.
        """
        key = Key(OWNER, KIND, str(hour))
        for attempt in range(MAX_ATTEMPTS):
            record = await self._store.get(key)
            merged: HourUsage = {} if record is None else _decode(record)
            _merge(merged, usage)
            body = msgspec.json.encode(
                [_Entry(*item) for item in sorted(merged.items(), key=lambda item: item[0])]
            )
            try:
                if record is None:
                    # Pinned: responses may be evicted for lack of space, but not what
                    #     customers are billed by.
                    await self._store.commit(
                        Put(key, hour, body, expires=hour + RETENTION, pinned=True)
                    )
                else:
                    await self._store.commit(Replace(key, "", body, version=record.version))
            except CommitConflict:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                continue
            return merged
        raise AssertionError

    def _note_stored(self, hour: int, stored: HourUsage, *, own: HourUsage) -> None:
        """Add what other processes have counted in an hour to the sums.

        stored: the hour's record.
        own: the counts that this process has just added to it.
        """
        previous_tokens = self._stored_tokens.get(hour, Counter())
        stored_tokens = _sum_by_owner(stored.items())
        own_tokens = _sum_by_owner(own.items())
        for owner, tokens in stored_tokens.items():
            # The record's growth since this process last saw it, less its own counts,
            # comes from other processes.
            foreign = tokens - previous_tokens[owner] - own_tokens[owner]
            if foreign:
                self._add_to_sums(hour, owner, foreign)
        self._stored_tokens[hour] = stored_tokens
        month = start_of_month(self._now())
        for old in [each for each in self._stored_tokens if each < month]:
            del self._stored_tokens[old]
        for old in [each for each in self._sums if each[2] < month]:
            del self._sums[old]

    def _add_to_sums(self, hour: int, owner: str, tokens: int) -> None:
        self._sums[owner, "day", start_of_day(hour)] += tokens
        self._sums[owner, "month", start_of_month(hour)] += tokens

    async def _iterate_records(self) -> AsyncGenerator[Record]:
        """Yield the records of all stored hours, latest first."""
        cursor: int | None = None
        while page := await self._store.load_page(OWNER, KIND, after=cursor, limit=PAGE):
            for record in page:
                yield record
            cursor = page[-1].position


def _decode(record: Record) -> HourUsage:
    return {
        entry.key: entry.counts for entry in msgspec.json.decode(record.body, type=list[_Entry])
    }


def _merge(into: HourUsage, usage: HourUsage) -> None:
    for key, counts in usage.items():
        into.setdefault(key, UsageCounts()).add(counts)


def _sum_by_owner(items: Iterable[tuple[UsageKey, UsageCounts]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for key, counts in items:
        sums[key.owner] += counts.tokens
    return sums
