"""What every reader gives: requests and their times on one clock that begins with the first arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from ..timing import Timing
from ..workload import Request

PAUSE = 3600.0
"""Seconds between two runs that are put one after the other: the server was idle."""
LONGEST = 3600.0
"""Seconds of a mean latency that nobody measures: the unit must be another."""


class LogError(ValueError):
    """A log that cannot be used; the message says what it lacks, and how it is had."""


class Log(Struct, frozen=True):
    """In order of arrival. format: whose file it was. notes: what a person should know of it."""

    format: str
    requests: tuple[Request, ...]
    timings: tuple[Timing, ...]
    notes: tuple[str, ...] = ()


def log_of(
    format: str,
    timings: Iterable[Timing],
    *,
    notes: Sequence[str] = (),
    skipped: int = 0,
    extra: Sequence[Request] = (),
) -> Log:
    """Checked, sorted, re-based. skipped: requests without an answer. extra: what is known of the requests beyond
    their counts, such as prefixes. Raises LogError.
    """
    found = sorted(timings, key=lambda timing: timing.arrival_s)
    if not found:
        raise LogError(f"{format}: it contains no successful request ({skipped} failed)")
    for timing in found:
        _check(format, timing)
    if len({timing.id for timing in found}) < len(found):
        found = [msgspec.structs.replace(timing, id=f"{timing.id}#{index}") for index, timing in enumerate(found)]
    if sum(timing.latency for timing in found) / len(found) > LONGEST:
        raise LogError(f"{format}: the mean latency is more than an hour; are these milliseconds? Use --unit ms")
    told = [f"{skipped} requests failed and are skipped, although they still put load on the server"] if skipped else []
    shifted = tuple(_shifted(timing, -found[0].arrival_s) for timing in found)
    known = {request.id: request for request in extra}
    requests = tuple(_request(timing, known.get(timing.id)) for timing in shifted)
    return Log(format, requests, shifted, (*notes, *told))


def joined(logs: Sequence[Log]) -> Log:
    """One run after the other, with a long pause between."""
    if len(logs) == 1:
        return logs[0]
    requests: list[Request] = []
    timings: list[Timing] = []
    begin = 0.0
    for number, log in enumerate(logs, start=1):
        for request, timing in zip(log.requests, log.timings, strict=True):
            id = f"{number}/{timing.id}"
            timings.append(msgspec.structs.replace(_shifted(timing, begin), id=id))
            after = None if request.after is None else f"{number}/{request.after}"
            at = request.arrival_s if after else request.arrival_s + begin
            requests.append(msgspec.structs.replace(request, id=id, arrival_s=at, after=after))
        begin = max(timing.last_token_s for timing in timings) + PAUSE
    notes = tuple(note for log in logs for note in log.notes)
    return Log(" and ".join(dict.fromkeys(log.format for log in logs)), tuple(requests), tuple(timings), notes)


def _check(format: str, timing: Timing) -> None:
    if timing.input_tokens < 1 or timing.output_tokens < 1:
        raise LogError(f"{format}: request {timing.id!r} has no tokens in its prompt or its answer")
    if not timing.arrival_s < timing.first_token_s <= timing.last_token_s < float("inf"):
        raise LogError(f"{format}: request {timing.id!r}: arrival, first and last token are not in this order")


def _shifted(timing: Timing, by: float) -> Timing:
    return msgspec.structs.replace(
        timing,
        arrival_s=timing.arrival_s + by,
        first_token_s=timing.first_token_s + by,
        last_token_s=timing.last_token_s + by,
        scheduled_s=None if timing.scheduled_s is None else timing.scheduled_s + by,
    )


def _request(timing: Timing, known: Request | None) -> Request:
    """As it arrived: what was measured of a conversation's pace stays, whatever a simulation would make of it."""
    plain = Request(timing.id, timing.arrival_s, timing.input_tokens, timing.output_tokens)
    if known is None:
        return plain
    return msgspec.structs.replace(
        plain, block_hashes=known.block_hashes, block_size=known.block_size, priority=known.priority
    )
