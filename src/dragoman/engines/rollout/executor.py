"""The interface of an RL executor, with optional parts. Implementations need not import this package.

Each method may be a coroutine function or a plain one. Plain ones are called on a thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from ...core.control import Weights
from ...core.engine import Capabilities
from ...core.request import Sampling


class RolloutSampling(Sampling, frozen=True, kw_only=True):
    """Sampling parameters: every field has its effective value, see `Sampling`.

    Parameters that the executor does not declare have neutral values, except max_tokens and stop_token_ids, which end
    every output: the stop token is the last of a candidate's tokens.

    logprobs: whether logprobs of sampled tokens are needed.
    seed: of the first candidate; the k-th uses seed + k.
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
    weight_version: of the weights that sampled it; None is the executor's.
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
    @property
    def tokenizer(self) -> str:
        """Path of a directory with tokenizer.json, the chat template and the model's configuration, without weights."""
        ...

    def generate(self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling) -> object:
        """Generate n candidates for each prompt: a list of `Candidate`-like objects per prompt, in order."""
        ...


@runtime_checkable
class DeclaresCapabilities(Protocol):
    @property
    def capabilities(self) -> Capabilities:
        """Declare the supported parameters beyond max_tokens. Without it there are none, and others are rejected."""
        ...


@runtime_checkable
class Versioned(Protocol):
    @property
    def weight_version(self) -> str: ...


@runtime_checkable
class Updatable(Versioned, Protocol):
    def update_weights(self, weights: Weights, version: str | None) -> object:
        """As `core.control.Trainable`; may raise ValueError for weights that do not fit. No call is running, unless the
        executor was paused.
        """
        ...


@runtime_checkable
class Pausable(Protocol):
    def pause(self) -> object:
        """Suspend running calls until `resume`."""
        ...

    def resume(self) -> object: ...
