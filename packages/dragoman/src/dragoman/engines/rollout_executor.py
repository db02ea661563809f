"""The interface of an RL executor, with optional parts. Implementations need not import
this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from ..core.capabilities import Capabilities
from ..core.request import Sampling
from ..core.weight_updates import Weights


class RolloutSampling(Sampling, frozen=True, kw_only=True):
    """Sampling parameters: every field has its effective value, see `Sampling`.

    Parameters that the executor does not declare have neutral values, except max_tokens
    and stop_token_ids, which end every output: the stop token is the last of a
    candidate's tokens.

    logprobs: whether logprobs of sampled tokens are needed.
    seed: of the first candidate; candidate k, counted from 0, uses seed + k.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False


class Candidate(Struct, frozen=True):
    """One candidate; any object or mapping with these fields is accepted.

    token_ids: as sampled.
    logprobs: one per token, if requested.
    finish_reason: `stop`, `length` or `abort`; None derives it from the tokens.
    prompt_token_ids: if set, must equal the prompt.
    weight_version: of the weights that sampled it; None means the executor's.
    text: ignored; text is decoded from the ids.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    weight_version: str | None = None
    text: str | None = None


@runtime_checkable
class Executor(Protocol):
    """The required part of an executor. `generate` may be a coroutine function."""

    @property
    def tokenizer(self) -> str:
        """Path of a directory with tokenizer.json, the chat template and the model's
        configuration, without weights.
        """
        ...

    def generate(
        self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
    ) -> object:
        """Generate n candidates for each prompt: a list of `Candidate`-like objects per
        prompt, in order.
        """
        ...


@runtime_checkable
class DeclaresCapabilities(Protocol):
    @property
    def capabilities(self) -> Capabilities:
        """Supported parameters beyond max_tokens; the others are rejected. Without this
        property none is supported.
        """
        ...


@runtime_checkable
class Versioned(Protocol):
    @property
    def weight_version(self) -> str: ...


@runtime_checkable
class Updatable(Protocol):
    def update_weights(self, weights: Weights, version: str | None) -> object:
        """Replace the weights, see `core.weight_updates.Trainable`. No call of
        `generate` runs, unless the executor is paused.

        Raises ValueError for weights that do not fit.
        """
        ...


@runtime_checkable
class Pausable(Protocol):
    def pause(self) -> object:
        """Suspend running calls until `resume`."""
        ...

    def resume(self) -> object: ...


class ExecutorParts(Struct, frozen=True):
    """The optional parts of an executor; None for one that it does not have."""

    declares: DeclaresCapabilities | None = None
    updatable: Updatable | None = None
    pausable: Pausable | None = None

    @classmethod
    def find(cls, executor: Executor) -> ExecutorParts:
        """Find the parts that an executor implements. No other code asks for its type, but
        `find_weight_version`.
        """
        return cls(
            executor if isinstance(executor, DeclaresCapabilities) else None,
            executor if isinstance(executor, Updatable) else None,
            executor if isinstance(executor, Pausable) else None,
        )


def find_weight_version(executor: object) -> str | None:
    """Return the version of an executor's present weights; None if it states none.

    Looked up each time: an executor may load its weights, and set `weight_version`, after
    it was constructed.
    """
    return executor.weight_version if isinstance(executor, Versioned) else None
