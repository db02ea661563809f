"""The same patience with many at once, on one timer. Knows nothing of what is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """late: called with each whose `seconds` have passed since its `begin`, unless its `end` came first.

    As all have the same time, they are due in the order in which they began: the timer is set for the first alone.
    """

    __slots__ = ("_due_times", "_loop", "_on_timeout", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, on_timeout: Callable[[T], None]) -> None:
        self._loop, self._seconds, self._on_timeout = loop, seconds, on_timeout
        self._due_times: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self, item: T) -> None:
        """Its time begins now, again if it had begun."""
        self._due_times.pop(item, None)
        self._due_times[item] = self._loop.time() + self._seconds
        if self._timer is None:
            self._schedule()

    def cancel(self, item: T) -> None:
        """It is no longer waited for, if it was."""
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
            # One that is late may end another's time.
            if self._due_times.pop(item, None) is not None:
                self._on_timeout(item)
        self._schedule()
