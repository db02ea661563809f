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

    __slots__ = ("_due", "_late", "_loop", "_seconds", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[T], None]) -> None:
        self._loop, self._seconds, self._late = loop, seconds, late
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, who: T) -> None:
        """Its time begins now, again if it had begun."""
        self._due.pop(who, None)
        self._due[who] = self._loop.time() + self._seconds
        if self._timer is None:
            self._set()

    def end(self, who: T) -> None:
        """It is no longer waited for, if it was."""
        self._due.pop(who, None)

    def _set(self) -> None:
        first = next(iter(self._due.values()), None)
        self._timer = None if first is None else self._loop.call_at(first, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        late: list[T] = []
        for who, due in self._due.items():
            if due > now:
                break
            late.append(who)
        for who in late:
            # One that is late may end another's time.
            if self._due.pop(who, None) is not None:
                self._late(who)
        self._set()
