"""The number of requests that run at the same time, from their times."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from .request_timing import Timing


def count_peak(timings: Sequence[Timing]) -> int:
    """Return the maximum number of requests that ran at the same time."""
    return max(accumulate(change for _, change in list_changes(timings)), default=0)


def list_changes(timings: Sequence[Timing]) -> list[tuple[float, int]]:
    """List the times at which the number of running requests changes, with the change
    (1 or -1), in order.

    At equal times an end precedes a start, so the count of a closed loop never exceeds
    its number of clients.
    """
    return sorted(
        change
        for timing in timings
        for change in ((timing.last_token_s, -1), (timing.arrival_s, 1))
    )
