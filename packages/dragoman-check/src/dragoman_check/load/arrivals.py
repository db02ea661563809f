"""Arrival times of a generated workload, as a gamma process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .request_lengths import Generator


def generate_arrivals(
    generator: Generator, *, rate: float, burstiness: float = 1.0
) -> Iterator[float]:
    """Yield arrival times in seconds, starting at 0, without end.

    rate: mean arrivals per second.
    burstiness: shape of the gamma distribution of the gaps, as in `vllm bench serve`: 1
        is a Poisson process, less is burstier, more is more regular, infinity is
        constant.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError("rate and burstiness must be more than 0")
    now = 0.0
    while True:
        yield now
        is_constant = np.isinf(burstiness)
        # The mean gap is shape times scale: 1 / rate for any burstiness.
        now += (
            1 / rate if is_constant else float(generator.gamma(burstiness, 1 / (rate * burstiness)))
        )
