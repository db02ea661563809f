"""Progress counters of a model, by which a health check detects a stalled engine."""

from __future__ import annotations

from typing import Protocol

from ..core.errors import EngineError


class _Generation(Protocol):
    def fail(self, error: EngineError) -> None:
        """End with an error; called if the engine has failed and does not end the
        generation itself.
        """
        ...


class Progress:
    """Progress counters of one model's generations, by which a health check detects a
    stalled engine.

    Counters are cheaper than timestamps: no token has to read the clock.
    """

    __slots__ = ("_generations", "events", "running")

    def __init__(self) -> None:
        # In order of their beginnings.
        self._generations: dict[_Generation, None] = {}
        self.events = 0
        """Number of event batches, starts and ends; it grows as long as the engine
        makes progress.
        """
        self.running = 0
        """Requests that were submitted to the engine and have not ended."""

    def begin(self, generation: _Generation) -> None:
        """Count a generation that begins."""
        self._generations[generation] = None
        self.running += 1
        self.events += 1

    def end(self, generation: _Generation) -> None:
        self._generations.pop(generation, None)
        self.running -= 1
        self.events += 1

    def fail_all(self, error: EngineError) -> None:
        """End all generations with an error, as their engine will deliver nothing more."""
        # A copy: a generation that ends is removed.
        for generation in tuple(self._generations):
            generation.fail(error)
