"""How long a step takes, from what is computed in it. A formula and its coefficients; no clock, no chance of its own.

    seconds = base
              + per_token, a curve over the step's tokens
              + per_context_token * tokens of context read by those that decode
              + per_prefill_pair * pairs of a query and a key in the prompts' chunks
              + per_sequence * sequences
    but never less than floor

The curve is piecewise linear: the first tokens of a step may cost nothing (the weights have to be read anyway), or
more than the others (each wakes up further experts). Every coefficient is at least 0 and base is more than 0, so no
profile can extrapolate to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct


class StepLoad(Struct, frozen=True, gc=False):
    """What one step computes.

    tokens: all that are scheduled. context: tokens whose keys and values are read by those that decode.
    prefill_pairs: for each chunk of a prompt, n * (computed before + n / 2).
    sequences: that take part.
    """

    tokens: int
    context: int = 0
    prefill_pairs: float = 0.0
    sequences: int = 0


StepTime = Callable[[StepLoad], float]
"""Seconds that a step takes; more than 0."""


class TokenCost(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds for each token of a step beyond so many, up to where the next one begins."""

    beyond: int
    seconds: float


class LatencyModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds. base: reading the weights and launching. per_token: the matrix products. per_context_token: reading
    keys and values. per_prefill_pair: a prompt's attention. floor: the least that a step takes."""

    base: float
    per_token: tuple[TokenCost, ...] = ()
    per_context_token: float = 0.0
    per_prefill_pair: float = 0.0
    per_sequence: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.base < float("inf"):
            raise ValueError("base must be more than 0 seconds: no step is free")
        for name in ("per_context_token", "per_prefill_pair", "per_sequence", "floor"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be negative")
        if any(not 0 <= cost.seconds < float("inf") for cost in self.per_token):
            raise ValueError("per_token must not be negative")
        begins = [cost.beyond for cost in self.per_token]
        if begins != sorted(set(begins)) or begins[:1] not in ([], [0]):
            raise ValueError("the token counts of per_token must be greater than 0 and in ascending order")

    def compute_seconds(self, load: StepLoad) -> float:
        """A `StepTime`."""
        total = (
            self.base
            + self.per_context_token * load.context
            + self.per_prefill_pair * load.prefill_pairs
            + self.per_sequence * load.sequences
        )
        remaining = load.tokens
        for cost in reversed(self.per_token):
            if remaining > cost.beyond:
                total += cost.seconds * (remaining - cost.beyond)
                remaining = cost.beyond
        return max(self.floor, total)


def add_noise(step_time: StepTime, sigma: float, generator: np.random.Generator) -> StepTime:
    """Each step times a log-normal factor of mean 1; sigma is the standard deviation of its logarithm."""

    def seconds(load: StepLoad) -> float:
        return step_time(load) * float(np.exp(generator.normal(-sigma * sigma / 2, sigma)))

    return seconds


def speed_up(step_time: StepTime, scale: float) -> StepTime:
    """The same on a clock that runs `scale` times as fast."""
    if not scale > 0:
        raise ValueError("scale must be more than 0")
    return lambda load: step_time(load) / scale
