"""The log of `dragoman bench`: JSON Lines with the fields of a trace and the request's
times.

`first_token_s`, `last_token_s` and optionally `scheduled_s` are on the same clock as
`arrival_s`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..request_timing import Timing
from ..trace_file import read_workload
from ..workload import WorkloadError, WorkloadRequest


def read_log(lines: Iterable[str | bytes]) -> tuple[list[WorkloadRequest], list[Timing]]:
    """Parse a log into its workload and, in the same order, its times. Raises
    WorkloadError, which names the line.
    """
    rows = list(lines)
    requests = read_workload(rows)
    decoder = msgspec.json.Decoder(Timing)
    timings: list[Timing] = []
    for number, line in enumerate(rows, start=1):
        if not line.strip():
            continue
        try:
            timings.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise WorkloadError(f"line {number}: {error}") from None
    return requests, timings
