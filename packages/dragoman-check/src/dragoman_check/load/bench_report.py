"""Statistics of a benchmark run: computed from its timings, rendered as text or a
table, compared with another run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from .logs.tools import read_any
from dragoman_sim.lab.report import Slo, Spread, summarize
from .workload import Timing
from .driver import CountSource

if TYPE_CHECKING:
    from rich.table import Table


class BenchReport(Struct, frozen=True):
    """The statistics of a benchmark run. Times are in seconds, rates per second.

    duration: from the first request to the last token.
    ttft, latency: from sending a request to its first and to its last token.
    tpot: mean time per output token after the first, per request.
    itl: gaps between arrivals of tokens; tokens that arrive together count as one
        arrival.
    peak_concurrency: maximum number of requests that ran at the same time.
    good: number of requests within the SLO; None without an SLO.
    goodput: requests within the SLO, per second; None without an SLO.
    counted_by: source of the token counts; None if a log does not state it.
    """

    requests: int
    failed: int
    duration: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    latency: Spread
    request_rate: float
    input_token_rate: float
    output_token_rate: float
    peak_concurrency: int
    good: int | None
    goodput: float | None
    counted_by: CountSource | None


METRICS: tuple[tuple[str, Callable[[BenchReport], Spread]], ...] = (
    ("TTFT", lambda report: report.ttft),
    ("TPOT", lambda report: report.tpot),
    ("ITL", lambda report: report.itl),
    ("E2E", lambda report: report.latency),
)
STATISTICS = ("mean", "p50", "p90", "p99")


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


def build_bench_report(run: Run, slo: Slo | None = None) -> BenchReport:
    timings = run.timings
    duration = max(timing.last_token_s for timing in timings) - min(
        timing.arrival_s for timing in timings
    )
    good = None if slo is None else sum(slo.is_met(timing) for timing in timings)
    return BenchReport(
        requests=len(timings),
        failed=run.failed,
        duration=duration,
        ttft=summarize(timing.ttft for timing in timings),
        tpot=summarize(timing.tpot for timing in timings if timing.tpot is not None),
        itl=summarize(run.gaps),
        latency=summarize(timing.latency for timing in timings),
        request_rate=len(timings) / duration,
        input_token_rate=sum(timing.input_tokens for timing in timings) / duration,
        output_token_rate=sum(timing.output_tokens for timing in timings) / duration,
        peak_concurrency=count_peak(timings),
        good=good,
        goodput=None if good is None else good / duration,
        counted_by=run.counted_by,
    )


def count_peak(timings: Sequence[Timing]) -> int:
    """Return the maximum number of requests that ran at the same time."""
    return max(accumulate(change for _, change in list_changes(timings)), default=0)


def list_changes(timings: Sequence[Timing]) -> list[tuple[float, int]]:
    """List the times at which the number of running requests changes, with the change
    (1 or -1), in order.

    At equal times an end precedes a start, so the count of a closed loop never exceeds
    its number of clients.
    """
    return sorted(
        change
        for timing in timings
        for change in ((timing.last_token_s, -1), (timing.arrival_s, 1))
    )


def render_bench_report(report: BenchReport) -> str:
    """Render the report as text, in milliseconds."""
    rows = (
        ("milliseconds", STATISTICS),
        *((name, _format_spread(read(report))) for name, read in METRICS),
    )
    lines = [
        *_describe_load(report),
        *(f"{name:<12}" + "".join(f"{cell:>12}" for cell in row) for name, row in rows),
    ]
    return "\n".join(lines) + "\n"


def build_bench_table(report: BenchReport) -> tuple[list[str], Table]:
    """Build the report for a terminal: text lines, and a table of the times in
    milliseconds.
    """
    from rich.table import Table  # noqa: PLC0415 - only a terminal needs it

    table = Table("milliseconds")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    for name, read in METRICS:
        table.add_row(name, *_format_spread(read(report)))
    return _describe_load(report), table


def _describe_load(report: BenchReport) -> list[str]:
    count_sources = {
        "ids": "the ids that the server returns",
        "usage": "the server's usage",
        None: "the log",
    }
    lines = [
        f"requests         {report.requests} in {report.duration:.2f} s, {report.failed} failed, "
        f"{report.peak_concurrency} at most at a time",
        f"throughput       {report.request_rate:.2f} requests/s, {report.input_token_rate:.0f} "
        f"input tokens/s, "
        f"{report.output_token_rate:.0f} output tokens/s",
        f"tokens           counted by {count_sources[report.counted_by]}",
    ]
    if report.good is not None and report.goodput is not None:
        lines.append(
            f"goodput          {report.goodput:.2f} requests/s ({report.good} within the SLO)"
        )
    return lines


def _list_milliseconds(spread: Spread) -> list[float]:
    return [1000 * value for value in (spread.mean, spread.p50, spread.p90, spread.p99)]


def _format_spread(spread: Spread) -> list[str]:
    return [f"{value:.2f}" for value in _list_milliseconds(spread)]


def render_comparison(first: tuple[str, BenchReport], second: tuple[str, BenchReport]) -> str:
    """Render two reports side by side, with the relative change, which is blank if the
    first value is 0.

    first, second: name and report of a run.
    """
    (first_name, before) = first
    (second_name, after) = second
    rows = [
        (f"{name} {statistic}, ms", old, new)
        for name, read in METRICS
        for statistic, old, new in zip(
            STATISTICS,
            _list_milliseconds(read(before)),
            _list_milliseconds(read(after)),
            strict=True,
        )
    ]
    rows.append(("requests/s", before.request_rate, after.request_rate))
    rows.append(("output tokens/s", before.output_token_rate, after.output_token_rate))
    if before.goodput is not None and after.goodput is not None:
        rows.append(("goodput, requests/s", before.goodput, after.goodput))
    width = max(12, len(first_name) + 2, len(second_name) + 2)
    lines = [f"{'':<20}{first_name:>{width}}{second_name:>{width}}{'change':>10}"]
    for name, old, new in rows:
        if not old and not new:
            continue
        change = f"{new / old - 1:>+10.1%}" if old else f"{'':>10}"
        lines.append(f"{name:<20}{old:>{width}.2f}{new:>{width}.2f}{change}")
    return "\n".join(lines) + "\n"
