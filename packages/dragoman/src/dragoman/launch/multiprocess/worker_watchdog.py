"""The decision which worker processes no longer respond. Reads no clock and kills
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from .metrics_hub import ENGINE_NUMBER

HEARTBEAT_SECONDS = 1.0
"""Interval of the workers' signs of life, without a service manager's watchdog."""
WORKER_SECONDS = 10.0
"""Time without a sign after which a worker is replaced. Work that blocks an event loop
for so long stops all its clients anyway.
"""
ENGINE_SECONDS = 60.0
"""The same for the engine process, whose libraries compile kernels."""
KEYS_SECONDS = 5.0
"""Time in which a worker must read the API keys again."""


class WorkerWatchdog:
    """The signs of life of the workers, and the keys that they have to read.

    interval: seconds between two checks, and between two signs of a worker.
    """

    def __init__(self, service_interval: float | None, now: float) -> None:
        """service_interval: the interval of the service manager's watchdog, whose
        timeout is twice as long; None if it has none.
        """
        self.interval = HEARTBEAT_SECONDS if service_interval is None else service_interval
        has_own_limits = service_interval is None
        self._worker_limit = WORKER_SECONDS if has_own_limits else 2 * self.interval
        self._engine_limit = ENGINE_SECONDS if has_own_limits else 2 * self.interval
        self._signs: dict[int, float] = {}
        self._key_deadlines: dict[int, float] = {}
        self._has_keys_answer = False
        self._checked_at = now

    @property
    def next_check(self) -> float:
        """The time of the next call of `find_silent`."""
        return self._checked_at + self.interval

    def note_sign(self, number: int, now: float) -> None:
        """Record a message of a worker that serves: its event loop runs."""
        self._signs[number] = now

    def forget(self, number: int) -> None:
        """Forget a worker that has died."""
        self._signs.pop(number, None)
        self._key_deadlines.pop(number, None)

    def expect_keys(self, numbers: Iterable[int], now: float) -> None:
        """Expect these workers to read the keys again."""
        # The deadline of a worker that has not answered yet stays.
        self._key_deadlines = dict.fromkeys(numbers, now + KEYS_SECONDS) | self._key_deadlines
        self._has_keys_answer = False

    def note_keys(self, number: int) -> None:
        """Record that a worker has read the keys."""
        self._key_deadlines.pop(number, None)
        self._has_keys_answer = True

    def find_silent(self, now: float) -> list[int]:
        """Return the workers that do not respond."""
        # If this process itself did not run (a paused container), no worker could send
        # a sign.
        if now - self._checked_at > 2 * self.interval:
            self._signs = dict.fromkeys(self._signs, now)
            self._key_deadlines = dict.fromkeys(self._key_deadlines, now + KEYS_SECONDS)
        self._checked_at = now
        return [
            number
            for number, sign in self._signs.items()
            if now - sign > (self._engine_limit if number == ENGINE_NUMBER else self._worker_limit)
        ]

    def pop_without_keys(self, now: float) -> tuple[list[int], bool]:
        """Return the workers that have not read the keys in time, each once, and
        whether others have: if none has, the file cannot be read, and replacing all
        workers would not help.
        """
        late = [number for number, deadline in self._key_deadlines.items() if now >= deadline]
        for number in late:
            del self._key_deadlines[number]
        return late, self._has_keys_answer
