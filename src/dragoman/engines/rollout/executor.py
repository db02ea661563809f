"""What an RL executor has to be, and what it may be besides. It needs to import nothing of ours.

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
    """How to sample: every field has its effective value, see `Sampling`.

    What the executor does not declare has the value that does nothing, but for max_tokens and stop_token_ids, which
    end every answer: the stop token is the last of a candidate's tokens. logprobs: of every sampled token are wanted.
    seed: of the first candidate; that of the k-th is seed + k.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False


class Candidate(Struct, frozen=True):
    """One answer, as any object or mapping with these fields says it.

    token_ids: as they were sampled. logprobs: one a token, where they are wanted. finish_reason: `stop`, `length` or
    `abort`; None is told from the tokens. prompt_token_ids: where it is told it must be the prompt, unchanged.
    weight_version: of the weights that sampled it; None is the executor's. text: not read, since it is made of the ids.
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
        """A directory with tokenizer.json, the chat template and what else a model says of itself, but its weights."""
        ...

    def generate(self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling) -> object:
        """n candidates of each prompt: a list with a list of `Candidate`-like objects for each prompt, in order."""
        ...


@runtime_checkable
class DeclaresCapabilities(Protocol):
    @property
    def capabilities(self) -> Capabilities:
        """What is honoured beyond max_tokens. Without it nothing is, and who asks for more is told so."""
        ...


@runtime_checkable
class Versioned(Protocol):
    @property
    def weight_version(self) -> str: ...


@runtime_checkable
class Updatable(Versioned, Protocol):
    def update_weights(self, weights: Weights, version: str | None) -> object:
        """As `core.control.Trainable`; may raise ValueError for weights that do not fit. No call is running then,
        unless the executor was paused."""
        ...


@runtime_checkable
class Pausable(Protocol):
    def pause(self) -> object:
        """Hold what runs, until `resume`."""
        ...

    def resume(self) -> object: ...
