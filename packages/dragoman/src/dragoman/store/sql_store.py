"""The base class of the stores in SQLite and PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TypeVar

from .deletion_clock import DeletionClock
from .protocol import (
    HEALTHY,
    Bounds,
    Key,
    Record,
    RecordChain,
    SeriesEntry,
    StoreHealth,
)
from .sql import Steps, select_chain, select_entries, select_entry, select_page, select_record

T = TypeVar("T")


class SqlStore(ABC):
    """The reading methods of a `Store` on SQL, which also track the last use of
    records.

    now: clock, Unix seconds.
    monotonic: the clock that tells a jump of the first; None trusts it.
    """

    def __init__(
        self,
        bounds: Bounds,
        now: Callable[[], float],
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self._bounds = bounds
        self._now = now
        self._deletion_clock = DeletionClock(now, monotonic or now)
        # Times of last use by position. Written later, in bulk, so that reads do not
        # wait for writes.
        self._touches: dict[int, float] = {}
        self._list_owners: Callable[[], Collection[str]] = tuple

    def share(self, list_owners: Callable[[], Collection[str]]) -> None:
        self._list_owners = list_owners

    async def check_health(self) -> StoreHealth:
        return HEALTHY

    @abstractmethod
    async def _read(self, steps: Steps[T]) -> T:
        """Run the statements of `steps` to completion.

        Raises:
            StoreUnavailable: the database failed.
        """

    async def get(self, key: Key) -> Record | None:
        now = self._now()
        record = await self._read(select_record(key, self._bounds, now))
        if record is not None:
            self._touches[record.position] = now
        return record

    async def load_chain(self, key: Key) -> RecordChain | None:
        now = self._now()
        records = await self._read(select_chain(key, self._bounds, now))
        if records is not None:
            self._touches |= {record.position: now for record in records.records}
        return records

    async def load_page(
        self,
        owner: str,
        kind: str,
        *,
        after: int | None = None,
        limit: int = 20,
        descending: bool = True,
    ) -> tuple[Record, ...]:
        return await self._read(
            select_page(owner, kind, after, limit, descending, self._bounds, self._now())
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
        return await self._read(
            select_entries(key, series, after, limit, descending, self._bounds, self._now())
        )

    async def load_entry(self, key: Key, series: str, id: str) -> SeriesEntry | None:
        return await self._read(select_entry(key, series, id, self._bounds, self._now()))

    def _take_touches(self) -> list[tuple[int, float]]:
        touches = self._touches
        self._touches = {}
        return list(touches.items())
