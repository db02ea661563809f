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
        self._key_deadlines: dict[int, dict[int, float]] = {}
        """By number of the worker, the deadlines by number of the request."""
        self._answered = 0
        """The latest request for keys that any worker has answered."""
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

    def expect_keys(self, numbers: Iterable[int], request: int, now: float) -> None:
        """Expect these workers to answer a request to read the keys again."""
        for number in numbers:
            self._key_deadlines.setdefault(number, {})[request] = now + KEYS_SECONDS

    def note_keys(self, number: int, request: int) -> None:
        """Record that a worker has answered a request, and with it all earlier ones.
        Later ones stay open: the file may have changed since.
        """
        self._answered = max(self._answered, request)
        deadlines = self._key_deadlines.get(number, {})
        self._key_deadlines[number] = {
            later: deadline for later, deadline in deadlines.items() if later > request
        }

    def find_silent(self, now: float) -> list[int]:
        """Return the workers that do not respond."""
        # If this process itself did not run (a paused container), no worker could send
        # a sign.
        if now - self._checked_at > 2 * self.interval:
            self._signs = dict.fromkeys(self._signs, now)
            self._key_deadlines = {
                number: dict.fromkeys(deadlines, now + KEYS_SECONDS)
                for number, deadlines in self._key_deadlines.items()
            }
        self._checked_at = now
        return [
            number
            for number, sign in self._signs.items()
            if now - sign > (self._engine_limit if number == ENGINE_NUMBER else self._worker_limit)
        ]

    def pop_without_keys(self, now: float) -> list[tuple[int, bool]]:
        """Return the workers that have not read the keys in time, each once, and
        whether others have answered the same request: if none has, the file cannot be
        read, and replacing all workers would not help.
        """
        late: list[tuple[int, bool]] = []
        for number, deadlines in self._key_deadlines.items():
            missed = [request for request, deadline in deadlines.items() if now >= deadline]
            if missed:
                late.append((number, self._answered >= min(missed)))
        for number, _ in late:
            del self._key_deadlines[number]
        return late
