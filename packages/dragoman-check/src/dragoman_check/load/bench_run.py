"""A benchmark run, measured now or read from a log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from .logs.log_reader import read_any
from .request_timing import Timing
from .stream_meter import CountSource


class Run(Struct, frozen=True):
    """A benchmark run, measured now or read from a log.

    gaps: seconds between arrivals of tokens, of all requests; empty if a log has none.
    failed: number of failed requests.
    """

    name: str
    timings: tuple[Timing, ...]
    gaps: tuple[float, ...]
    failed: int = 0
    counted_by: CountSource | None = None


class LoggedGaps(Struct):
    """The fields of a log line besides those of `Timing`."""

    gaps: tuple[float, ...] = ()
    counted_by: CountSource | None = None


def encode_log(
    timings: Sequence[Timing], gaps: Sequence[tuple[float, ...]], counted_by: CountSource
) -> bytes:
    """Encode the requests as JSON Lines, which are a log for `calibrate` and a trace
    for `simulate` and `plan`.
    """
    rows = (
        msgspec.json.encode(
            {**msgspec.to_builtins(timing), "counted_by": counted_by, "gaps": request_gaps}
        )
        for timing, request_gaps in zip(timings, gaps, strict=True)
    )
    return b"".join(row + b"\n" for row in rows)


def read_run(name: str, data: bytes) -> Run:
    """Read a log of `bench`, or of any tool that `calibrate` knows. Raises LogError."""
    log = read_any(data)
    if b'"gaps"' not in data:
        return Run(name, log.timings, ())
    lines = [
        msgspec.json.decode(line, type=LoggedGaps) for line in data.splitlines() if line.strip()
    ]
    return Run(
        name,
        log.timings,
        tuple(gap for line in lines for gap in line.gaps),
        counted_by=lines[0].counted_by,
    )
