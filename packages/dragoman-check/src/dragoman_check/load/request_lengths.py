"""Distributions of a generated request's length."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

Generator = np.random.Generator


class FixedLength(Struct, frozen=True, tag="fixed", forbid_unknown_fields=True):
    """A constant number of tokens."""

    tokens: int

    def sample(self, _: Generator) -> int:
        return max(1, self.tokens)


class UniformLength(Struct, frozen=True, tag="uniform", forbid_unknown_fields=True):
    """A uniform distribution from `low` to `high` tokens, inclusive."""

    low: int
    high: int

    def sample(self, generator: Generator) -> int:
        return max(1, int(generator.integers(self.low, self.high, endpoint=True)))


class LogNormalLength(Struct, frozen=True, tag="lognormal", forbid_unknown_fields=True):
    """A log-normal distribution, capped.

    median, maximum: tokens.
    sigma: standard deviation of the logarithm.
    """

    median: float
    sigma: float
    maximum: int

    def sample(self, generator: Generator) -> int:
        length = self.median * float(np.exp(generator.normal(0.0, self.sigma)))
        return min(max(1, round(length)), self.maximum)


RequestLengths = FixedLength | UniformLength | LogNormalLength


def parse_lengths(text: str) -> RequestLengths:
    """Parse `512`, `100-900` or `lognormal:400,0.8,8192` (median, sigma, maximum).
    Raises ValueError.
    """
    name, _, numbers = text.partition(":")
    try:
        if name == "lognormal" and numbers:
            median, sigma, maximum = numbers.split(",")
            return _check_lengths(LogNormalLength(float(median), float(sigma), int(maximum)), text)
        low, is_range, high = text.partition("-")
        return _check_lengths(
            UniformLength(int(low), int(high)) if is_range else FixedLength(int(text)), text
        )
    except ValueError:
        raise ValueError(
            f"{text!r} is not a length: use 512, 100-900 or lognormal:MEDIAN,SIGMA,MAXIMUM"
        ) from None


def _check_lengths(lengths: RequestLengths, text: str) -> RequestLengths:
    match lengths:
        case FixedLength(tokens):
            is_valid = tokens >= 1
        case UniformLength(low, high):
            is_valid = 1 <= low <= high
        case LogNormalLength(median, sigma, maximum):
            is_valid = 0 < median < float("inf") and 0 <= sigma < 20 and maximum >= 1
    if not is_valid:
        raise ValueError(text)
    return lengths
