"""What is due when, on the event loop's clock: one timer for all streams; no deadline moves because one was late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timetable:
    """Times are seconds on the loop's clock, less what it was held.

    Calls happen in the order of their times, with exactly the time they were asked for: what is due together happens
    together, and after a late wake-up everything that was missed happens at once.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._shift = 0.0
        self._held_since: float | None = None
        self._running = False

    def now(self) -> float:
        """The present, or the moment at which it was held."""
        return (self._loop.time() if self._held_since is None else self._held_since) - self._shift

    def call_at(self, when: float, call: Callable[[float], None]) -> None:
        heappush(self._calls, (when, next(self._numbers), call))
        if not self._running:
            self._arm()

    def hold(self) -> None:
        """Stop the clock."""
        if self._held_since is None:
            self._held_since = self._loop.time()
            self._disarm()

    def go_on(self) -> None:
        if self._held_since is not None:
            self._shift += self._loop.time() - self._held_since
            self._held_since = None
            self._arm()

    def close(self) -> None:
        self._calls.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """A timer for the next call, unless there is one that is early enough."""
        if not self._calls or self._held_since is not None:
            return
        when = self._calls[0][0] + self._shift
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._running = True
        try:
            now = self.now()
            while self._calls and self._calls[0][0] <= now and self._held_since is None:
                when, _, call = heappop(self._calls)
                call(when)
        finally:
            self._running = False
            self._arm()
