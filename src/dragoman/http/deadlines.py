"""Many deadlines of the same duration on one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Deadlines that all last `seconds`.

    on_timeout: called with each item whose time has passed since `start`, unless `cancel` came first.

    Equal durations expire in the order of their start, so the timer is set for the first item only.
    """

    __slots__ = ("_due_times", "_loop", "_on_timeout", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, on_timeout: Callable[[T], None]) -> None:
        self._loop, self._seconds, self._on_timeout = loop, seconds, on_timeout
        self._due_times: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, item: T) -> None:
        """Start or restart the item's deadline."""
        self._due_times.pop(item, None)
        self._due_times[item] = self._loop.time() + self._seconds
        if self._timer is None:
            self._schedule()

    def cancel(self, item: T) -> None:
        """Cancel the item's deadline, if any."""
        self._due_times.pop(item, None)

    def _schedule(self) -> None:
        first = next(iter(self._due_times.values()), None)
        self._timer = None if first is None else self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        expired: list[T] = []
        for item, due in self._due_times.items():
            if due > now:
                break
            expired.append(item)
        for item in expired:
            # A callback may cancel another item's deadline.
            if self._due_times.pop(item, None) is not None:
                self._on_timeout(item)
        self._schedule()
