"""The verdict on a client, from its requests and what its call returned. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from dragoman import Message, ToolCall, ToolResult

from .faults import Expectation, Fault
from .sent_request import Ending, SentRequest

MAX_ATTEMPTS = 10
"""Failed attempts at one conversation above which they are a retry storm."""
MIN_BACKOFF = 0.05
"""Seconds before a retry after a status without `Retry-After`."""
_TOLERANCE = 0.01
"""Seconds by which a client may be early: clocks of sleeping threads are coarse."""
_PLACES = {
    Ending.REJECTED: "was rejected with {status}",
    Ending.FAILED: "ended with an error event",
    Ending.DROPPED: "was cut off",
    Ending.TRUNCATED: "ended without its last events",
    Ending.MALFORMED: "was malformed",
    Ending.STALLED: "stalled and was cut off",
}


class Mistake(StrEnum):
    """What a client can do wrong."""

    RETRY_STORM = "retry storm"
    NO_BACKOFF = "no back-off"
    BROKEN_ANSWER = "broken answer taken as complete"
    LOST_TOOL_CALL = "lost tool call"
    CHANGED_TOOL_CALL = "changed tool call"
    USAGE = "usage counted wrongly"
    HUNG = "hung"
    OTHER_ANSWER = "other answer"
    NEEDLESS_ERROR = "needless error"


@dataclass(frozen=True, slots=True)
class Finding:
    """A mistake, with the evidence."""

    mistake: Mistake
    evidence: str

    def __str__(self) -> str:
        return f"{self.mistake}: {self.evidence}"


class UsageMismatch(AssertionError):
    """The client's token counts are not those that the server reported."""


def judge_requests(
    requests: Sequence[SentRequest], *, has_unused_replies: bool = False
) -> Iterator[Finding]:
    """Judge what can be seen at the server alone.

    Args:
        requests: those for generations, oldest first.
        has_unused_replies: the test has queued replies that no request has used.
    """
    for attempts in group_by_conversation(requests):
        yield from _judge_retries(attempts)
        yield from _judge_patience(attempts)
    yield from _judge_tool_calls(requests, has_unused_replies=has_unused_replies)


def judge_answer(requests: Sequence[SentRequest], *, is_broken: bool = False) -> Iterator[Finding]:
    """Judge a call that has returned without an error: each conversation must have had
    a whole answer.

    Args:
        requests: those for generations, oldest first.
        is_broken: the server has interrupted the answers, so that a client that stops
            to read has not read all.
    """
    for attempts in group_by_conversation(requests):
        last = attempts[-1]
        is_whole = any(attempt.ending is Ending.COMPLETE for attempt in attempts)
        has_stopped = is_broken and last.ending in {Ending.RUNNING, Ending.ABANDONED}
        if (last.ending in _PLACES or has_stopped) and not is_whole:
            place = _PLACES.get(last.ending, "was not read to its end").format(status=last.status)
            yield Finding(
                Mistake.BROKEN_ANSWER,
                f"the last of {_count(len(attempts), 'response')} {place}, and the client "
                "reported no error",
            )


def judge_run(
    fault: Fault,
    requests: Sequence[SentRequest],
    error: Exception | None,
    *,
    has_unused_replies: bool = False,
) -> list[Finding]:
    """Judge a test that ran under a fault.

    Args:
        fault: the fault.
        requests: those for generations, oldest first.
        error: what the test raised; None if it passed.
        has_unused_replies: see `judge_requests`.
    """
    findings = list(
        judge_requests(requests, has_unused_replies=has_unused_replies and error is None)
    )
    if error is None:
        findings += judge_answer(requests, is_broken=fault.breaks_answer)
    elif isinstance(error, UsageMismatch):
        findings.append(Finding(Mistake.USAGE, str(error)))
    elif isinstance(error, AssertionError):
        broken = list(judge_answer(requests, is_broken=fault.breaks_answer))
        findings += broken or [Finding(Mistake.OTHER_ANSWER, _describe(error))]
    elif fault.expectation is Expectation.SAME:
        findings.append(Finding(Mistake.NEEDLESS_ERROR, _describe(error)))
    return findings


def describe_run(requests: Sequence[SentRequest], error: Exception | None) -> str:
    """Describe in a few words what a client did that made no mistake."""
    retries = sum(len(attempts) - 1 for attempts in group_by_conversation(requests))
    suffix = f" after {_count(retries, 'retry')}" if retries else ""
    outcome = "same answer" if error is None else f"raised {type(error).__name__}"
    return outcome + suffix


def group_by_conversation(requests: Sequence[SentRequest]) -> list[list[SentRequest]]:
    """Group requests with equal prompts: attempts at the same answer."""
    groups: list[list[SentRequest]] = []
    for request in requests:
        prompt = None if request.generation is None else request.generation.prompt
        for group in groups:
            first = group[0].generation
            if first is not None and first.prompt == prompt:
                group.append(request)
                break
        else:
            groups.append([request])
    return groups


def _judge_retries(attempts: Sequence[SentRequest]) -> Iterator[Finding]:
    failed = [attempt for attempt in attempts if attempt.ending in _PLACES]
    if len(failed) > MAX_ATTEMPTS:
        seconds = attempts[-1].arrived_at - attempts[0].arrived_at
        yield Finding(
            Mistake.RETRY_STORM, f"{len(attempts)} requests within {seconds:.1f} s for one answer"
        )
    for attempt, retry in pairwise(attempts):
        if attempt.ending is not Ending.REJECTED or attempt.answered_at is None:
            continue
        waited = retry.arrived_at - attempt.answered_at
        required = MIN_BACKOFF if attempt.retry_after is None else attempt.retry_after
        if waited < required - _TOLERANCE:
            reason = "" if attempt.retry_after is None else f" with Retry-After: {required:g}"
            yield Finding(
                Mistake.NO_BACKOFF,
                f"a retry {waited:.3f} s after a {attempt.status}{reason}",
            )
            return


def _judge_patience(attempts: Sequence[SentRequest]) -> Iterator[Finding]:
    for attempt in attempts:
        if attempt.ending is Ending.STALLED:
            yield Finding(
                Mistake.HUNG, "it waited on a silent stream until the server closed the connection"
            )
            return


def _judge_tool_calls(
    requests: Sequence[SentRequest], *, has_unused_replies: bool
) -> Iterator[Finding]:
    for index, request in enumerate(requests):
        if request.ending is not Ending.COMPLETE or not request.tool_calls:
            continue
        later = requests[index + 1 :]
        continued = any(_continues(request, each) for each in later)
        if not continued and not has_unused_replies:
            continue
        for call in request.tool_calls:
            if not any(_has_result(each, call) for each in later):
                yield Finding(Mistake.LOST_TOOL_CALL, f"no result of {call.name} was sent")
            elif changed := _find_changed_call(later, call):
                yield Finding(
                    Mistake.CHANGED_TOOL_CALL,
                    f"the history has {changed.name}({changed.arguments}) instead of "
                    f"{call.name}({call.arguments})",
                )


def _continues(request: SentRequest, later: SentRequest) -> bool:
    """Whether a later request has the messages of an earlier one, and more."""
    count = len(request.messages)
    return len(later.messages) > count and later.messages[:count] == request.messages


def _has_result(request: SentRequest, call: ToolCall) -> bool:
    """Whether a request has the result of a call; without ids, of a tool of this name."""
    return any(
        isinstance(part, ToolResult) and (part.call_id == call.id or message.name == call.name)
        for message in request.messages
        for part in message.parts
    )


def _find_changed_call(requests: Sequence[SentRequest], call: ToolCall) -> ToolCall | None:
    return next(
        (
            part
            for request in requests
            for part in _list_calls(request.messages)
            if part.id == call.id
            if part.name != call.name or _normalize(part.arguments) != _normalize(call.arguments)
        ),
        None,
    )


def _list_calls(messages: Sequence[Message]) -> Iterator[ToolCall]:
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                yield part


def _normalize(arguments: str) -> object:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def _describe(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"
