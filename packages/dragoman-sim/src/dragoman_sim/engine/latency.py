"""The latency model: a step's duration as a function of its load.

    seconds = base
              + per_token, a curve over the step's tokens + per_expert_token, a curve
              over the mean tokens of all ranks that share experts + per_context_token *
              tokens of context read by decoding sequences + per_prefill_pair *
              query-key pairs of the prompt chunks + per_sequence * sequences +
              mixed_base + per_mixed_sequence * sequences, if the step has a prompt
              chunk +
              draft_base + per_draft * drafts, if any draft is verified + lora_base +
              per_lora_token * lora_tokens + lora_load * loaded_loras, if an adapter is
              used
    but never less than floor

The curves are piecewise linear: the first tokens of a step may be free (the weights are
read anyway), or cost more than the others (each activates further experts). Every
coefficient is at least 0 and base is more than 0, so every duration is positive.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class StepLoad(Struct, frozen=True, gc=False):
    """The load of one step.

    tokens: number of scheduled tokens.
    context: number of tokens whose keys and values decoding sequences read.
    prefill_pairs: query-key pairs; for each prompt chunk of n tokens, n * (computed
        before + n / 2).
    sequences: number of scheduled sequences.
    drafts: number of speculative tokens to verify.
    lora_tokens: scheduled tokens of sequences with an adapter.
    loaded_loras: adapters that the device does not have yet.
    expert_tokens: mean of the tokens over the data-parallel ranks that share experts;
        None without such ranks.
    """

    tokens: int
    context: int = 0
    prefill_pairs: float = 0.0
    sequences: int = 0
    expert_tokens: float | None = None
    drafts: int = 0
    lora_tokens: int = 0
    loaded_loras: int = 0


StepTime = Callable[[StepLoad], float]
"""Seconds that a step takes; more than 0."""


class TokenCost(Struct, frozen=True, forbid_unknown_fields=True):
    """One piece of a cost curve: `seconds` for each token of a step above `beyond`, up
    to the next piece.
    """

    beyond: int
    seconds: float


_AMOUNTS = (
    "per_context_token",
    "per_prefill_pair",
    "per_sequence",
    "floor",
    "draft_base",
    "per_draft",
    "lora_base",
    "per_lora_token",
    "lora_load",
    "mixed_base",
    "per_mixed_sequence",
)


class LatencyModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients of a step's duration, in seconds.

    base: reading the weights and launching kernels.
    per_token: the matrix products.
    per_expert_token: matrix products of shared experts, and their communication.
    per_context_token: reading keys and values.
    per_prefill_pair: attention of a prompt.
    mixed_base, per_mixed_sequence: additional cost of a step with a prompt chunk, which
        is no single CUDA graph, and of each of its sequences.
    floor: minimum duration of a step.
    draft_base, per_draft: the drafter of speculative decoding; drafts are also tokens
        of the step.
    lora_base, per_lora_token: matrix products of adapters.
    lora_load: loading an adapter onto the device.
    """

    base: float
    per_token: tuple[TokenCost, ...] = ()
    per_context_token: float = 0.0
    per_prefill_pair: float = 0.0
    per_sequence: float = 0.0
    floor: float = 0.0
    per_expert_token: tuple[TokenCost, ...] = ()
    draft_base: float = 0.0
    per_draft: float = 0.0
    lora_base: float = 0.0
    per_lora_token: float = 0.0
    lora_load: float = 0.0
    mixed_base: float = 0.0
    per_mixed_sequence: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.base < float("inf"):
            raise ValueError("base must be more than 0 seconds: no step is free")
        for name in _AMOUNTS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must not be negative")
        for name, curve in (
            ("per_token", self.per_token),
            ("per_expert_token", self.per_expert_token),
        ):
            if any(not 0 <= cost.seconds < float("inf") for cost in curve):
                raise ValueError(f"{name} must not be negative")
            begins = [cost.beyond for cost in curve]
            if begins != sorted(set(begins)) or begins[:1] not in ([], [0]):
                raise ValueError(
                    f"the token counts of {name} must be greater than 0 and in ascending order"
                )

    @property
    def largest_coefficient(self) -> float:
        amounts = (getattr(self, name) for name in _AMOUNTS)
        curves = (cost.seconds for cost in (*self.per_token, *self.per_expert_token))
        return max(self.base, *amounts, *curves)

    def compute_seconds(self, load: StepLoad) -> float:
        """Compute the duration of a step, as a `StepTime`."""
        total = (
            self.base
            + self.per_context_token * load.context
            + self.per_prefill_pair * load.prefill_pairs
            + self.per_sequence * load.sequences
        )
        if load.prefill_pairs:
            # A step with a prompt cannot replay the CUDA graph of pure decoding, so it
            # and each of its sequences cost more.
            total += self.mixed_base + self.per_mixed_sequence * load.sequences
        if self.per_token:
            total += integrate_curve(self.per_token, load.tokens)
        if load.drafts:
            total += self.draft_base + self.per_draft * load.drafts
        if load.lora_tokens:
            total += (
                self.lora_base
                + self.per_lora_token * load.lora_tokens
                + self.lora_load * load.loaded_loras
            )
        if self.per_expert_token:
            total += integrate_curve(
                self.per_expert_token,
                load.tokens if load.expert_tokens is None else load.expert_tokens,
            )
        return max(self.floor, total)


class MemoizedLatency:
    """A memoized `LatencyModel.compute_seconds` for steps without drafts and adapters.

    It adds in the same order, so the sums are equal to the last bit.
    """

    def __init__(self, model: LatencyModel) -> None:
        self._model = model
        self._curves: dict[int, tuple[float, float]] = {}

    def __call__(self, tokens: int, context: int, pairs: float, sequences: int) -> float:
        model = self._model
        (token_seconds, expert_seconds) = self._read_curves(tokens)
        total = (
            model.base
            + model.per_context_token * context
            + model.per_prefill_pair * pairs
            + model.per_sequence * sequences
        )
        if pairs:
            total += model.mixed_base + model.per_mixed_sequence * sequences
        return max(model.floor, total + token_seconds + expert_seconds)

    def compute_decoding(self, sequences: int, contexts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Compute the durations of steps in which the same sequences decode, without
        prompts.

        contexts: for each step, the context of its `StepLoad`.
        """
        model = self._model
        (token_seconds, expert_seconds) = self._read_curves(sequences)
        total = model.base + model.per_context_token * contexts + model.per_sequence * sequences
        return np.maximum(model.floor, total + token_seconds + expert_seconds)

    def _read_curves(self, tokens: int) -> tuple[float, float]:
        if (curves := self._curves.get(tokens)) is None:
            model = self._model
            curves = (
                integrate_curve(model.per_token, tokens),
                integrate_curve(model.per_expert_token, tokens),
            )
            self._curves[tokens] = curves
        return curves


def integrate_curve(curve: tuple[TokenCost, ...], tokens: float) -> float:
    """Integrate a cost curve: return the seconds for this number of tokens."""
    total = 0.0
    for cost in reversed(curve):
        if tokens > cost.beyond:
            total += cost.seconds * (tokens - cost.beyond)
            tokens = cost.beyond
    return total


def add_noise(step_time: StepTime, sigma: float, generator: np.random.Generator) -> StepTime:
    """Multiply the duration of each step by a log-normal factor of mean 1.

    sigma: standard deviation of the factor's logarithm.
    """

    def seconds(load: StepLoad) -> float:
        # The mean of a log-normal factor is exp(mu + sigma^2 / 2), so this mu makes it
        # 1.
        return step_time(load) * float(np.exp(generator.normal(-sigma * sigma / 2, sigma)))

    return seconds


def speed_up(step_time: StepTime, scale: float) -> StepTime:
    """Divide step times by `scale`, for a clock that runs `scale` times as fast."""
    if not scale > 0:
        raise ValueError("scale must be more than 0")
    return lambda load: step_time(load) / scale
