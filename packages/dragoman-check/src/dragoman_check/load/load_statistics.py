"""Statistics of measured requests: mean, percentiles, service level objectives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from .request_timing import Timing


class Spread(Struct, frozen=True):
    """Statistics of one quantity, over all requests or all inter-token latencies. All
    are 0 without values.
    """

    mean: float
    p50: float
    p90: float
    p99: float
    p95: float = 0.0


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """A service level objective: limits in seconds. A request is good if it meets all
    limits that are set.
    """

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None

    def is_met(self, timing: Timing) -> bool:
        """Whether a timing meets the SLO. A response of one token has no TPOT, and
        meets any limit on it.
        """
        pairs = (
            (self.ttft, timing.ttft),
            (self.tpot, timing.tpot or 0.0),
            (self.latency, timing.latency),
        )
        return all(limit is None or value <= limit for limit, value in pairs)


def summarize(values: Iterable[float]) -> Spread:
    """Compute mean and percentiles, with linear interpolation as in vLLM's
    benchmark.
    """
    array = np.fromiter(values, dtype=np.float64)
    if not len(array):
        return Spread(0.0, 0.0, 0.0, 0.0)
    return Spread(float(array.mean()), *map(float, np.percentile(array, (50, 90, 99, 95))))
