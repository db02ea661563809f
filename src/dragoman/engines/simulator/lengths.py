"""Output lengths of requests that do not determine them. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist

from msgspec import Struct

from .keyed_rng import KeyedRandom

_STANDARD_NORMAL = NormalDist()


class LengthDistribution(Struct, frozen=True):
    """A distribution of counts of tokens. low, high: of `uniform`, both included; the same number is a fixed length.

    median, sigma: of `lognormal`; sigma is the standard deviation of the logarithm, 0 with the others.
    """

    low: int = 1
    high: int = 1
    median: float = 0.0
    sigma: float = 0.0

    def sample(self, rng: KeyedRandom) -> int:
        """At least `low`."""
        if self.median:
            # Away from 0 and 1, where the inverse is infinite.
            quantile = min(max(rng.random(), 1e-9), 1 - 1e-9)
            return max(self.low, round(self.median * math.exp(self.sigma * _STANDARD_NORMAL.inv_cdf(quantile))))
        return self.low + rng.randbelow(self.high - self.low + 1)


def parse_length_distribution(text: str) -> LengthDistribution:
    """`200`, `uniform:50,300` or `lognormal:MEDIAN,SIGMA`. Raises ValueError."""
    kind, _, numbers = text.strip().rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not all(math.isfinite(value) and 0 <= value <= 1e7 for value in values):
        values = []
    match kind, values:
        case "", [count] if count >= 0 and count == int(count):
            return LengthDistribution(int(count), int(count))
        case "uniform", [low, high] if low <= high and low == int(low) and high == int(high):
            return LengthDistribution(int(low), int(high))
        case "lognormal", [median, sigma] if median >= 1 and sigma <= 5:
            return LengthDistribution(median=median, sigma=sigma)
        case _:
            raise ValueError(
                f"lengths are a number, uniform:LEAST,MOST or lognormal:MEDIAN,SIGMA (at most 5), not {text[:40]!r}"
            )
