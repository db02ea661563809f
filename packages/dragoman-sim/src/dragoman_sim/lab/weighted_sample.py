"""Statistics of many weighted values in bounded memory: exact up to a number of values,
then with a bounded error.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EXACT_VALUES = 1 << 20
"""Values that a sample stores exactly; beyond that all are rounded."""


_DROPPED_BITS = 52 - 13
"""Mantissa bits, of 52, that rounding drops: a rounded value is at most 2^-14, or 0.006
%, off.
"""


class WeightedSample:
    """A sample of positive values, each with the number of its occurrences.

    The mean is exact. Percentiles are exact for up to `max_values` additions; then
    values are rounded to 14 significant bits and merged.
    """

    def __init__(self, max_values: int = EXACT_VALUES) -> None:
        self._max_values = max_values
        self._values = array("d")
        self._weights = array("q")
        self._total = 0.0
        self.count = 0
        """Sum of all weights."""

    def __len__(self) -> int:
        """Return the number of stored values."""
        return len(self._values)

    def add(self, value: float, weight: int) -> None:
        self._values.append(value)
        self._weights.append(weight)
        self._total += value * weight
        self.count += weight
        if len(self._values) > self._max_values:
            self._round_values()

    def add_many(self, values: NDArray[np.float64], weight: int) -> None:
        self._values.frombytes(values.tobytes())
        self._weights.extend([weight] * len(values))
        self._total += float(values.sum()) * weight
        self.count += weight * len(values)
        if len(self._values) > self._max_values:
            self._round_values()

    @property
    def mean(self) -> float:
        return self._total / self.count if self.count else 0.0

    def compute_percentiles(self, percentages: Sequence[float]) -> list[float]:
        """Compute percentiles with linear interpolation, as numpy does for the repeated
        values; 0 if there are none.
        """
        if not self.count:
            return [0.0 for _ in percentages]
        values = np.frombuffer(self._values)
        order = np.argsort(values)
        values = values[order]
        ends = np.cumsum(np.frombuffer(self._weights, dtype=np.int64)[order])
        result: list[float] = []
        for percentage in percentages:
            rank = percentage / 100 * (self.count - 1)
            low, high = (
                float(values[np.searchsorted(ends, place, side="right")])
                for place in (np.floor(rank), np.ceil(rank))
            )
            result.append(low + (high - low) * (rank - float(np.floor(rank))))
        return result

    def _round_values(self) -> None:
        """Merge values whose leading bits are equal into the middle of their interval."""
        # Positive floats, read as integers, have the same order: values with equal
        # leading bits form an interval.
        bits = np.frombuffer(self._values, dtype=np.int64) >> _DROPPED_BITS
        first_bits, places = np.unique(bits, return_inverse=True)
        weights = np.bincount(places, np.frombuffer(self._weights, dtype=np.int64))
        middles = (first_bits << _DROPPED_BITS) + (1 << (_DROPPED_BITS - 1))
        self._values = array("d", middles.tobytes())
        self._weights = array("q", np.rint(weights).astype(np.int64).tobytes())
