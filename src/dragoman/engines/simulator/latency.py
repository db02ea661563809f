"""How long a step takes, from what is computed in it. A formula and its coefficients; no clock, no chance of its own.

    seconds = base + per_token * tokens + per_context_token * context + per_prefill_pair * prefill_pairs
              + per_sequence * sequences,   never less than floor

Every coefficient is at least 0 and base is more than 0, so no profile can extrapolate to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct


class StepLoad(Struct, frozen=True, gc=False):
    """What one step computes.

    tokens: all that are scheduled. context: cached tokens read by those that decode.
    prefill_pairs: for each chunk of n > 1 prompt tokens, n * (computed before + n / 2).
    sequences: that take part.
    """

    tokens: int
    context: int = 0
    prefill_pairs: float = 0.0
    sequences: int = 0


StepTime = Callable[[StepLoad], float]
"""Seconds that a step takes; more than 0."""


class LatencyModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. base: reading the weights and launching. per_token: the matrix products. per_context_token: reading
    keys and values. per_prefill_pair: a prompt's attention. floor: the least a step takes."""

    base: float
    per_token: float = 0.0
    per_context_token: float = 0.0
    per_prefill_pair: float = 0.0
    per_sequence: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise ValueError("base must be more than 0 seconds: no step is free")
        for name in self.__struct_fields__[1:]:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")

    def seconds(self, load: StepLoad) -> float:
        return max(
            self.floor,
            self.base
            + self.per_token * load.tokens
            + self.per_context_token * load.context
            + self.per_prefill_pair * load.prefill_pairs
            + self.per_sequence * load.sequences,
        )


def noisy(step_time: StepTime, sigma: float, generator: np.random.Generator) -> StepTime:
    """Each step times a log-normal factor of mean 1; sigma is the standard deviation of its logarithm."""

    def seconds(load: StepLoad) -> float:
        return step_time(load) * float(np.exp(generator.normal(-sigma * sigma / 2, sigma)))

    return seconds
