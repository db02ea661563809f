"""The interface of an RL executor, with optional parts. Implementations need not import this package.

Each method may be a coroutine function or a plain one. Plain ones are called on a thread, one at a time. Sequences are
grouped into calls, and their candidates converted to token outputs; that part is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ...core.control import Weights
from ...core.engine import (
    Capabilities,
    Ended,
    OutputCallback,
    Sampled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from ...core.errors import EngineError
from ...core.events import FinishReason
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


_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class CallMember(Struct, frozen=True):
    """A sequence and its receiver."""

    request: TokenRequest
    deliver: OutputCallback


class ExecutorCall(Struct, frozen=True):
    """Candidates of one prompt with equal sampling."""

    sampling: RolloutSampling
    members: tuple[CallMember, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.members[0].request.prompt

    @property
    def n(self) -> int:
        return len(self.members)


def group_calls(members: Sequence[CallMember], supported: frozenset[str]) -> list[ExecutorCall]:
    """Group sequences that arrived together: choices of a prompt are consecutive, and so are their seeds.

    supported: names of sampling parameters; the others are ignored.
    """
    calls: list[ExecutorCall] = []
    for member in members:
        sampling, last = build_sampling(member.request, supported), calls[-1] if calls else None
        if last is not None and last.prompt == member.request.prompt and sampling == _compute_next_sampling(last):
            calls[-1] = ExecutorCall(last.sampling, (*last.members, member))
        else:
            calls.append(ExecutorCall(sampling, (member,)))
    return calls


def _compute_next_sampling(call: ExecutorCall) -> RolloutSampling:
    """Compute the sampling of one more candidate."""
    seed = call.sampling.seed
    return call.sampling if seed is None else replace(call.sampling, seed=seed + call.n)


def build_sampling(request: TokenRequest, supported: frozenset[str]) -> RolloutSampling:
    return RolloutSampling(
        **{name: value for name, value in asdict(request.sampling).items() if name in supported},
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens if "min_tokens" in supported else 0,
        stop_token_ids=tuple(sorted(request.stop_token_ids)),
        logprobs=request.logprobs is not None,
    )


def parse_candidates(output: object, calls: Sequence[ExecutorCall], vocab: int) -> list[list[Candidate]]:
    """Parse and validate an executor's output. Raises EngineError if it is invalid."""
    try:
        groups = msgspec.convert(output, list[list[Candidate]], from_attributes=True)
    except msgspec.ValidationError as error:
        raise EngineError(f"The executor returned no lists of candidates: {error}") from error
    if [len(group) for group in groups] != [call.n for call in calls]:
        raise EngineError(
            f"The executor returned {list(map(len, groups))} candidates, not {[call.n for call in calls]}."
        )
    for call, group in zip(calls, groups, strict=True):
        for candidate in group:
            _check_candidate(candidate, call, vocab)
    return groups


def _check_candidate(candidate: Candidate, call: ExecutorCall, vocab: int) -> None:
    ids, sampling = candidate.token_ids, call.sampling
    if candidate.prompt_token_ids not in (None, call.prompt):
        raise EngineError("The executor answered a different prompt.")
    if len(ids) > sampling.max_tokens:
        raise EngineError(f"The executor returned {len(ids)} tokens; the maximum is {sampling.max_tokens}.")
    # An executor is code of the user; a wrong id would otherwise fail only where its text is looked up.
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise EngineError(f"The executor returned token ids that are not in 0 to {vocab - 1}.")
    if sampling.logprobs and (candidate.logprobs is None or len(candidate.logprobs) != len(ids)):
        raise EngineError("The executor did not return a logprob for each token.")
    if candidate.finish_reason is not None and candidate.finish_reason not in _REASONS:
        raise EngineError(f"The executor returned the finish reason {candidate.finish_reason[:40]!r}.")


def build_outputs(member: CallMember, candidate: Candidate, version: str | None) -> Iterator[TokenOutput]:
    """Build a sequence's outputs from its candidate. version: of the weights; None if unknown."""
    request, ids = member.request, candidate.token_ids
    weight_version = candidate.weight_version or version
    if weight_version is not None and ids:
        yield WeightVersionSet(request.id, weight_version)
    logprobs = candidate.logprobs if request.logprobs is not None else None
    for index, id in enumerate(ids):
        yield Sampled(request.id, id, None if logprobs is None else TokenLogprob(logprobs[index], None, ()))
    stop = ids[-1] if ids and ids[-1] in request.stop_token_ids else None
    yield Ended(request.id, _find_reason(candidate, stop, request), stop=stop)


def _find_reason(candidate: Candidate, stop: int | None, request: TokenRequest) -> FinishReason:
    if candidate.finish_reason is not None:
        return _REASONS[candidate.finish_reason]
    is_full = stop is None and len(candidate.token_ids) >= request.max_tokens
    return FinishReason.LENGTH if is_full else FinishReason.STOP
