"""A histogram with fixed bucket boundaries, cheap to update."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import inf


class Histogram:
    """A histogram.

    bounds: upper bounds of the buckets.
    counts: observations in each bucket, not cumulative, and one more for those above
        the last bound.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add the same value `times` times."""
        # bisect_left, since a Prometheus bucket includes its upper bound (`le`).
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def observe_all(self, values: Sequence[float]) -> None:
        """Add values that were collected, at less cost than one by one."""
        counts = self.counts
        bounds = self.bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self.sum += sum(values)

    def add(self, other: Histogram) -> None:
        """Add the observations of a histogram with the same bounds."""
        for index, count in enumerate(other.counts):
            self.counts[index] += count
        self.sum += other.sum

    def coarsen(self, bounds: Sequence[float]) -> Histogram:
        """Return a histogram of the same observations with some of the bounds."""
        coarse = Histogram(bounds)
        for bound, count in zip((*self.bounds, inf), self.counts, strict=True):
            coarse.counts[bisect_left(bounds, bound)] += count
        coarse.sum = self.sum
        return coarse

    @property
    def count(self) -> int:
        return sum(self.counts)
