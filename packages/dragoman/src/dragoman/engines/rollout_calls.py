"""The calls of an RL executor: sequences in, grouped by prompt, candidates out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ..core.errors import EngineError
from ..core.events import FinishReason
from ..core.token_engine import (
    Ended,
    Sampled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from .active_sequences import ActiveSequence
from .rollout_executor import Candidate, RolloutSampling

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class ExecutorCall(Struct, frozen=True):
    """Candidates of one prompt with equal sampling."""

    sampling: RolloutSampling
    members: tuple[ActiveSequence, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.members[0].request.prompt

    @property
    def n(self) -> int:
        return len(self.members)


def group_calls(members: Sequence[ActiveSequence], supported: frozenset[str]) -> list[ExecutorCall]:
    """Group sequences that arrived together: choices of a prompt are consecutive, and
    so are their seeds.

    supported: names of sampling parameters; the others are ignored.
    """
    calls: list[ExecutorCall] = []
    for member in members:
        sampling = build_sampling(member.request, supported)
        last = calls[-1] if calls else None
        if last is not None and last.prompt == member.request.prompt:
            # The sampling that the call's next candidate would have.
            seed = last.sampling.seed
            if sampling == (
                last.sampling if seed is None else replace(last.sampling, seed=seed + last.n)
            ):
                calls[-1] = ExecutorCall(last.sampling, (*last.members, member))
                continue
        calls.append(ExecutorCall(sampling, (member,)))
    return calls


def build_sampling(request: TokenRequest, supported: frozenset[str]) -> RolloutSampling:
    return RolloutSampling(
        **{name: value for name, value in asdict(request.sampling).items() if name in supported},
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens if "min_tokens" in supported else 0,
        stop_token_ids=tuple(sorted(request.stop_token_ids)),
        logprobs=request.logprobs is not None,
    )


def parse_candidates(
    output: object, calls: Sequence[ExecutorCall], vocab: int
) -> list[list[Candidate]]:
    """Parse and validate an executor's output. Raises EngineError if it is invalid."""
    try:
        groups = msgspec.convert(output, list[list[Candidate]], from_attributes=True)
    except msgspec.ValidationError as error:
        raise EngineError(f"The executor did not return lists of candidates: {error}") from error
    if [len(group) for group in groups] != [call.n for call in calls]:
        raise EngineError(
            f"The executor returned {list(map(len, groups))} candidates, not "
            f"{[call.n for call in calls]}."
        )
    pairs = [
        (call, candidate) for call, group in zip(calls, groups, strict=True) for candidate in group
    ]
    for call, candidate in pairs:
        ids = candidate.token_ids
        sampling = call.sampling
        if candidate.prompt_token_ids not in (None, call.prompt):
            raise EngineError("The executor answered a different prompt.")
        if len(ids) > sampling.max_tokens:
            raise EngineError(
                f"The executor returned {len(ids)} tokens; the maximum is {sampling.max_tokens}."
            )
        # An executor is the user's code; a wrong id would otherwise fail only when its
        # text is looked up.
        if ids and not 0 <= min(ids) <= max(ids) < vocab:
            raise EngineError(f"The executor returned token ids that are not in 0 to {vocab - 1}.")
        if sampling.logprobs and (
            candidate.logprobs is None or len(candidate.logprobs) != len(ids)
        ):
            raise EngineError("The executor did not return a logprob for each token.")
        if candidate.finish_reason is not None and candidate.finish_reason not in _REASONS:
            raise EngineError(
                f"The executor returned the finish reason {candidate.finish_reason[:40]!r}."
            )
    return groups


def build_outputs(
    member: ActiveSequence, candidate: Candidate, version: str | None
) -> Iterator[TokenOutput]:
    """Build a sequence's outputs from its candidate. version: that of the weights; None
    if unknown.
    """
    request = member.request
    ids = candidate.token_ids
    weight_version = candidate.weight_version or version
    if weight_version is not None and ids:
        yield WeightVersionSet(request.id, weight_version)
    logprobs = candidate.logprobs if request.logprobs is not None else None
    for index, id in enumerate(ids):
        yield Sampled(
            request.id, id, None if logprobs is None else TokenLogprob(logprobs[index], None, ())
        )
    stop = ids[-1] if ids and ids[-1] in request.stop_token_ids else None
    if candidate.finish_reason is not None:
        reason = _REASONS[candidate.finish_reason]
    else:
        reason = (
            FinishReason.LENGTH
            if stop is None and len(ids) >= request.max_tokens
            else FinishReason.STOP
        )
    yield Ended(request.id, reason, stop=stop)


async def call_executor(call: Callable[[], object], *, on_loop: bool) -> object:
    """Call an executor's method, which may be a coroutine function.

    on_loop: call it on the event loop, since it does not block; otherwise on a thread.
    """
    result = call() if on_loop else await asyncio.to_thread(call)
    return await result if inspect.isawaitable(result) else result
