"""The time by which expired records are deleted, which a wrong clock does not advance."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

TOLERANCE_SECONDS = 60.0
"""Difference between the clocks that is no jump."""
HOLD_SECONDS = 3600.0
"""Time after which a clock that was set forward is believed."""


class DeletionClock:
    """Wall-clock time that goes forward as fast as the monotonic clock.

    If the wall clock jumps forward, nothing is deleted by its new time for an hour: a
    clock that is wrong for a minute must not delete what it makes look expired. Reads
    filter by the wall clock, so what is expired is not served meanwhile.

    now: Unix seconds.
    monotonic: seconds, of any origin.
    """

    def __init__(self, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._now = now
        self._monotonic = monotonic
        self._offset = now() - monotonic()
        self._jumped_at: float | None = None

    def read(self) -> float:
        """Return the time of deletions, in Unix seconds."""
        now = self._now()
        monotonic = self._monotonic()
        offset = now - monotonic
        if offset <= self._offset + TOLERANCE_SECONDS:
            self._offset = offset
            self._jumped_at = None
        elif self._jumped_at is None:
            self._jumped_at = monotonic
            log.warning(
                "the clock was set forward by %.0f s; stored objects that expire by that are "
                "deleted in an hour",
                offset - self._offset,
            )
        elif monotonic - self._jumped_at >= HOLD_SECONDS:
            self._offset = offset
            self._jumped_at = None
        return monotonic + self._offset
