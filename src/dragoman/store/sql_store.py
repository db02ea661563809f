"""Reads shared by the SQL stores, and tracking of last use. Independent of a driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from . import sql
from .base import Bounds, Key, Record, RecordChain, SeriesEntry

T = TypeVar("T")


class SqlStore(ABC):
    """The reading half of a `Store`. now: clock, Unix seconds."""

    def __init__(self, bounds: Bounds, now: Callable[[], float]) -> None:
        self._bounds, self._now = bounds, now
        # Times of last use by position. Written later in bulk, so that reads do not wait for writes.
        self._touches: dict[int, float] = {}

    @abstractmethod
    async def _read(self, steps: sql.Steps[T]) -> T:
        """Run the statements of `steps` to completion.

        Raises:
            StoreUnavailable: the database failed.
        """

    async def get(self, key: Key) -> Record | None:
        now = self._now()
        record = await self._read(sql.get(key, self._bounds, now))
        if record is not None:
            self._touches[record.position] = now
        return record

    async def chain(self, key: Key) -> RecordChain | None:
        now = self._now()
        chain = await self._read(sql.chain(key, self._bounds, now))
        if chain is not None:
            self._touches |= {record.position: now for record in chain.records}
        return chain

    async def page(
        self, owner: str, kind: str, *, after: int | None = None, limit: int = 20, descending: bool = True
    ) -> tuple[Record, ...]:
        return await self._read(sql.page(owner, kind, after, limit, descending, self._bounds, self._now()))

    async def entries(
        self, key: Key, series: str, *, after: int | None = None, limit: int = 100, descending: bool = False
    ) -> tuple[SeriesEntry, ...]:
        return await self._read(sql.entries(key, series, after, limit, descending, self._bounds, self._now()))

    async def entry(self, key: Key, series: str, id: str) -> SeriesEntry | None:
        return await self._read(sql.entry(key, series, id, self._bounds, self._now()))

    def _take_touches(self) -> list[tuple[int, float]]:
        touches, self._touches = self._touches, {}
        return list(touches.items())
