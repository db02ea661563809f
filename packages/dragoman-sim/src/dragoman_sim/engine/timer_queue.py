"""Timers on the event loop's clock: one loop timer for all streams; a late call does
not move other deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

_TOLERANCE = 0.000502
"""Seconds by which callbacks may run early.

uvloop's clock counts milliseconds, and its timers round to the nearest one. If a timer
that was rounded down did not run the callbacks of the next half millisecond, the loop
would spin until they are due.
"""


class TimerQueue:
    """A queue of callbacks. Times are seconds on the loop's clock, less the time it was
    paused.

    Callbacks run in the order of their times and get exactly the time that they were
    scheduled for: simultaneous ones run together, and after a late wake-up all missed
    ones run at once.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence_numbers = count()
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._tick_time: float | None = None
        """The time of this iteration of the event loop, if it has arrivals."""
        self._has_due = False
        """Whether `_end_tick` has callbacks to run."""
        self._paused_seconds = 0.0
        self._paused_at: float | None = None
        self._running = False

    def now(self) -> float:
        """The current time, or the time of the pause."""
        return (
            self._loop.time() if self._paused_at is None else self._paused_at
        ) - self._paused_seconds

    def arrive(self, loop_time: float | None) -> float:
        """Return the time of an arrival: of now, or of an earlier time of the event loop.

        Arrivals in one iteration of the loop have the same time, as those in one message
        to vLLM's engine core. All pauses so far are taken to be before `loop_time`.
        """
        now = self._tick_time
        if now is None:
            self._tick_time = now = self.now()
            self._loop.call_soon(self._end_tick)
        return now if loop_time is None else min(now, loop_time - self._paused_seconds)

    def call_at(self, when: float, callback: Callable[[float], None]) -> None:
        # The number keeps simultaneous callbacks in order; without it the heap would
        # compare callbacks.
        heappush(self._calls, (when, next(self._sequence_numbers), callback))
        # `_run_due` arms the timer once, after all callbacks that are due.
        if not self._running:
            self._arm()

    def pause(self) -> None:
        """Stop the clock."""
        if self._paused_at is None:
            self._paused_at = self._loop.time()
            self._disarm()

    def resume(self) -> None:
        if self._paused_at is not None:
            self._paused_seconds += self._loop.time() - self._paused_at
            self._paused_at = None
            self._arm()

    def close(self) -> None:
        self._calls.clear()
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        """Arm a loop timer for the next callback, unless the current one is early
        enough.
        """
        if not self._calls or self._paused_at is not None:
            return
        when = self._calls[0][0] + self._paused_seconds
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        if when <= self._loop.time() + _TOLERANCE:
            # No timer for callbacks that are due: they run in the next iteration, with
            # those that this one still adds.
            self._has_due = self._tick_time is not None
            self._timer = None if self._has_due else self._loop.call_soon(self._run_due)
        else:
            self._timer = self._loop.call_at(when, self._run_due)

    def _end_tick(self) -> None:
        """Run callbacks that are due, in the iteration after arrivals."""
        self._tick_time = None
        if self._has_due:
            self._has_due = False
            self._run_due()

    def _run_due(self) -> None:
        self._timer = None
        self._running = True
        calls = self._calls
        try:
            now = self._loop.time() - self._paused_seconds + _TOLERANCE
            # A callback may add further ones that are due, or pause the clock.
            while calls and calls[0][0] <= now and self._paused_at is None:
                when, _, callback = heappop(calls)
                callback(when)
        finally:
            # Also after a callback that raises: later ones must still run.
            self._running = False
            self._arm()
