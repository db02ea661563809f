"""Sequences that belong together become one call of an executor, and its candidates their tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ...core.engine import Deliver, Ended, Sampled, SampledBy, Score, TokenOutput, TokenRequest
from ...core.errors import EngineError
from ...core.events import FinishReason
from .executor import Candidate, RolloutSampling

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class Member(Struct, frozen=True):
    """A sequence, and who hears of it."""

    request: TokenRequest
    deliver: Deliver


class Call(Struct, frozen=True):
    """Candidates of one prompt, sampled alike."""

    sampling: RolloutSampling
    members: tuple[Member, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.members[0].request.prompt

    @property
    def n(self) -> int:
        return len(self.members)


def calls_of(members: Sequence[Member], honoured: frozenset[str]) -> list[Call]:
    """Sequences that came at once: the choices of a prompt follow each other, and their seeds do.

    honoured: names of sampling parameters; the others are as if nobody had said anything.
    """
    calls: list[Call] = []
    for member in members:
        sampling, last = sampling_of(member.request, honoured), calls[-1] if calls else None
        if last is not None and last.prompt == member.request.prompt and sampling == _next(last):
            calls[-1] = Call(last.sampling, (*last.members, member))
        else:
            calls.append(Call(sampling, (member,)))
    return calls


def _next(call: Call) -> RolloutSampling:
    """How one more candidate would be sampled."""
    seed = call.sampling.seed
    return call.sampling if seed is None else replace(call.sampling, seed=seed + call.n)


def sampling_of(request: TokenRequest, honoured: frozenset[str]) -> RolloutSampling:
    return RolloutSampling(
        **{name: value for name, value in asdict(request.sampling).items() if name in honoured},
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens if "min_tokens" in honoured else 0,
        stop_token_ids=tuple(sorted(request.stop_token_ids)),
        logprobs=request.logprobs is not None,
    )


def candidates_of(made: object, calls: Sequence[Call], vocab: int) -> list[list[Candidate]]:
    """What an executor gave for these calls, checked. Raises EngineError for what cannot be an answer."""
    try:
        found = msgspec.convert(made, list[list[Candidate]], from_attributes=True)
    except msgspec.ValidationError as error:
        raise EngineError(f"The executor returned no lists of candidates: {error}") from error
    if [len(each) for each in found] != [call.n for call in calls]:
        raise EngineError(
            f"The executor returned {list(map(len, found))} candidates, not {[call.n for call in calls]}."
        )
    for call, each in zip(calls, found, strict=True):
        for candidate in each:
            _check(candidate, call, vocab)
    return found


def _check(candidate: Candidate, call: Call, vocab: int) -> None:
    ids, sampling = candidate.token_ids, call.sampling
    if candidate.prompt_token_ids not in (None, call.prompt):
        raise EngineError("The executor answered a different prompt.")
    if len(ids) > sampling.max_tokens:
        raise EngineError(f"The executor returned {len(ids)} tokens; the maximum is {sampling.max_tokens}.")
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise EngineError(f"The executor returned token ids that are not in 0 to {vocab - 1}.")
    if sampling.logprobs and (candidate.logprobs is None or len(candidate.logprobs) != len(ids)):
        raise EngineError("The executor did not return a logprob for each token.")
    if candidate.finish_reason is not None and candidate.finish_reason not in _REASONS:
        raise EngineError(f"The executor returned the finish reason {candidate.finish_reason[:40]!r}.")


def outputs(member: Member, candidate: Candidate, version: str | None) -> Iterator[TokenOutput]:
    """What a sequence is told of its candidate. version: of the weights; None where nobody knows."""
    request, ids = member.request, candidate.token_ids
    told = candidate.weight_version or version
    if told is not None and ids:
        yield SampledBy(request.id, told)
    logprobs = candidate.logprobs if request.logprobs is not None else None
    for place, id in enumerate(ids):
        yield Sampled(request.id, id, None if logprobs is None else Score(logprobs[place], None, ()))
    stop = ids[-1] if ids and ids[-1] in request.stop_token_ids else None
    yield Ended(request.id, _reason(candidate, stop, request), stop=stop)


def _reason(candidate: Candidate, stop: int | None, request: TokenRequest) -> FinishReason:
    if candidate.finish_reason is not None:
        return _REASONS[candidate.finish_reason]
    full = stop is None and len(candidate.token_ids) >= request.max_tokens
    return FinishReason.LENGTH if full else FinishReason.STOP
