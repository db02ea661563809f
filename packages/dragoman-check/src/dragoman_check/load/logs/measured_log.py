"""The common format of a log: requests and their times, on one clock that starts at the
first arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from ..request_timing import Timing
from ..workload import WorkloadRequest

IDLE_SECONDS = 3600.0
"""Seconds of idle time between two joined runs."""
MAX_MEAN_LATENCY = 3600.0
"""Mean latency in seconds above which the unit is probably wrong."""


class LogError(ValueError):
    """A log is unusable; the message names what is missing and how to record it."""


class MeasuredLog(Struct, frozen=True):
    """A log, in order of arrival.

    format: name of the tool or file format.
    requests: the workload.
    timings: measured times, parallel to `requests`.
    notes: remarks for the user.
    """

    format: str
    requests: tuple[WorkloadRequest, ...]
    timings: tuple[Timing, ...]
    notes: tuple[str, ...] = ()


def build_log(
    format: str,
    timings: Iterable[Timing],
    *,
    notes: Sequence[str] = (),
    skipped: int = 0,
    extra: Sequence[WorkloadRequest] = (),
) -> MeasuredLog:
    """Validate and sort timings, and shift them to start at 0.

    skipped: number of requests without a response.
    extra: requests with further data, such as prefixes and priorities.

    Raises:
        LogError: the timings are invalid.
    """
    ordered = sorted(timings, key=lambda timing: timing.arrival_s)
    if not ordered:
        raise LogError(f"{format}: the log contains no successful request ({skipped} failed)")
    for timing in ordered:
        if timing.input_tokens < 1 or timing.output_tokens < 1:
            raise LogError(
                f"{format}: request {timing.id!r} has no tokens in its prompt or its answer"
            )
        if not timing.arrival_s < timing.first_token_s <= timing.last_token_s < float("inf"):
            raise LogError(
                f"{format}: request {timing.id!r}: arrival, first and last token are not in this "
                f"order"
            )
    if len({timing.id for timing in ordered}) < len(ordered):
        # Benchmarks restart their ids in each run, and users concatenate logs of
        # several runs.
        ordered = [
            msgspec.structs.replace(timing, id=f"{timing.id}#{index}")
            for index, timing in enumerate(ordered)
        ]
    if sum(timing.latency for timing in ordered) / len(ordered) > MAX_MEAN_LATENCY:
        raise LogError(
            f"{format}: the mean latency is more than an hour; are these milliseconds? Use --unit "
            f"ms"
        )
    skipped_notes = (
        [f"{skipped} requests failed and are skipped, although they still put load on the server"]
        if skipped
        else []
    )
    shifted = tuple(_shift(timing, -ordered[0].arrival_s) for timing in ordered)
    traced_by_id = {request.id: request for request in extra}
    requests: list[WorkloadRequest] = []
    for timing in shifted:
        # At its measured arrival, not `after` another request: measured think times
        # must not depend on the simulation.
        request = WorkloadRequest(
            timing.id, timing.arrival_s, timing.input_tokens, timing.output_tokens
        )
        if (traced := traced_by_id.get(timing.id)) is not None:
            request = msgspec.structs.replace(
                request,
                block_hashes=traced.block_hashes,
                block_size=traced.block_size,
                priority=traced.priority,
            )
        requests.append(request)
    return MeasuredLog(format, tuple(requests), shifted, (*notes, *skipped_notes))


def join_logs(logs: Sequence[MeasuredLog]) -> MeasuredLog:
    """Join runs one after the other, with a pause of IDLE_SECONDS between them."""
    if len(logs) == 1:
        return logs[0]
    requests: list[WorkloadRequest] = []
    timings: list[Timing] = []
    begin = 0.0
    for number, log in enumerate(logs, start=1):
        for request, timing in zip(log.requests, log.timings, strict=True):
            id = f"{number}/{timing.id}"
            timings.append(msgspec.structs.replace(_shift(timing, begin), id=id))
            after = None if request.after is None else f"{number}/{request.after}"
            arrival = request.arrival_s if after else request.arrival_s + begin
            requests.append(msgspec.structs.replace(request, id=id, arrival_s=arrival, after=after))
        # The simulated server must be idle between runs, as the real one was.
        begin = max(timing.last_token_s for timing in timings) + IDLE_SECONDS
    notes = tuple(note for log in logs for note in log.notes)
    return MeasuredLog(
        " and ".join(dict.fromkeys(log.format for log in logs)),
        tuple(requests),
        tuple(timings),
        notes,
    )


def _shift(timing: Timing, by: float) -> Timing:
    return msgspec.structs.replace(
        timing,
        arrival_s=timing.arrival_s + by,
        first_token_s=timing.first_token_s + by,
        last_token_s=timing.last_token_s + by,
        scheduled_s=None if timing.scheduled_s is None else timing.scheduled_s + by,
    )
