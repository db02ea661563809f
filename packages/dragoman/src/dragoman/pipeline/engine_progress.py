"""Progress counters of a model, by which a health check detects a stalled engine."""

from __future__ import annotations

from collections.abc import Callable

from ..core.errors import EngineError


class Progress:
    """Progress counters of one model's generations, by which a health check detects a
    stalled engine.

    Counters are cheaper than timestamps: no token has to read the clock.
    """

    __slots__ = ("_fail_callbacks", "events", "running")

    def __init__(self) -> None:
        self._fail_callbacks: set[Callable[[EngineError], None]] = set()
        self.events = 0
        """Number of event batches, starts and ends; it grows as long as the engine
        makes progress.
        """
        self.running = 0
        """Requests that were submitted to the engine and have not ended."""

    def begin(self, fail: Callable[[EngineError], None]) -> None:
        """Count a generation that begins.

        fail: ends the generation with an error; called if the engine has failed and
            does not end it itself.
        """
        self._fail_callbacks.add(fail)
        self.running += 1
        self.events += 1

    def end(self, fail: Callable[[EngineError], None]) -> None:
        self._fail_callbacks.discard(fail)
        self.running -= 1
        self.events += 1

    def fail_all(self, error: EngineError) -> None:
        """End all generations with an error, as their engine will deliver nothing more."""
        # A copy: a generation that ends removes its callback.
        for fail in tuple(self._fail_callbacks):
            fail(error)
