"""The report of a benchmark run, as text."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .bench_run import Run
from .concurrency import count_peak
from .load_statistics import Slo, Spread, summarize
from .stream_meter import CountSource


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


def list_milliseconds(spread: Spread) -> list[float]:
    return [1000 * value for value in (spread.mean, spread.p50, spread.p90, spread.p99)]


def _format_spread(spread: Spread) -> list[str]:
    return [f"{value:.2f}" for value in list_milliseconds(spread)]
