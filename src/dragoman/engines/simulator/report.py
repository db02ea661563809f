"""A benchmark report of a run: percentiles, goodput, throughput, cache hits and preemptions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .replay import ReplayResult, StepLog
from .timing import Timing


class Spread(Struct, frozen=True):
    """Statistics of one quantity, over all requests (or all gaps between tokens). All 0 if there is none."""

    mean: float
    p50: float
    p90: float
    p99: float


class Slo(Struct, frozen=True, forbid_unknown_fields=True):
    """A service level objective, in seconds; a request is good if it meets all limits that are set."""

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None

    def is_met(self, timing: Timing) -> bool:
        """Whether a timing meets the SLO. A response of one token has no time per output token and meets any limit on
        it."""
        pairs = ((self.ttft, timing.ttft), (self.tpot, timing.tpot or 0.0), (self.latency, timing.latency))
        return all(limit is None or value <= limit for limit, value in pairs)


class Report(Struct, frozen=True):
    """The figures of a run. Times in seconds, rates per second, shares from 0 to 1.

    duration: first arrival to last token.
    ttft: time to the first token.
    tpot: mean time per output token after the first, per request.
    itl: every gap between two tokens.
    latency: time to the last token.
    good: requests within the SLO; None without one.
    kv_usage_mean, kv_usage_max: over time and all replicas.
    cache_hits: share of prompt tokens.
    replicas_mean, replicas_max: over time; those that start or drain included.
    kv_transfer: seconds of transfers from a prefill replica; None for aggregated serving.
    """

    requests: int
    duration: float
    ttft: Spread
    tpot: Spread
    itl: Spread
    latency: Spread
    request_rate: float
    input_token_rate: float
    output_token_rate: float
    good: int | None
    goodput: float | None
    kv_usage_mean: float
    kv_usage_max: float
    running_mean: float
    waiting_mean: float
    preemptions: int
    cache_hits: float
    replicas_mean: float
    replicas_max: int
    kv_transfer: Spread | None = None


def summarize(values: Iterable[float]) -> Spread:
    """Percentiles with linear interpolation, as numpy and vLLM's benchmark take them."""
    array = np.fromiter(values, dtype=np.float64)
    if not len(array):
        return Spread(0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = np.percentile(array, (50, 90, 99))
    return Spread(float(array.mean()), float(p50), float(p90), float(p99))


def build_report(result: ReplayResult, slo: Slo | None = None) -> Report:
    """Build the report of a run; at least one request must have been answered."""
    timings = result.timings
    if not timings:
        raise ValueError("no request was answered")
    duration = max(timing.last_token_s for timing in timings) - min(timing.arrival_s for timing in timings)
    inputs = sum(timing.input_tokens for timing in timings)
    good = None if slo is None else sum(slo.is_met(timing) for timing in timings)
    usage_max = max((max(log.kv_usage, default=0.0) for log in result.steps), default=0.0)
    return Report(
        requests=len(timings),
        duration=duration,
        ttft=summarize(timing.ttft for timing in timings),
        tpot=summarize(timing.tpot for timing in timings if timing.tpot is not None),
        itl=summarize(result.gaps),
        latency=summarize(timing.latency for timing in timings),
        request_rate=len(timings) / duration,
        input_token_rate=inputs / duration,
        output_token_rate=sum(timing.output_tokens for timing in timings) / duration,
        good=good,
        goodput=None if good is None else good / duration,
        kv_usage_mean=_average_over_time(result.steps, [log.kv_usage for log in result.steps], duration, mean=True),
        kv_usage_max=usage_max,
        running_mean=_average_over_time(result.steps, [log.running for log in result.steps], duration),
        waiting_mean=_average_over_time(result.steps, [log.waiting for log in result.steps], duration),
        preemptions=sum(timing.preemptions for timing in timings),
        cache_hits=sum(timing.cached_tokens for timing in timings) / inputs,
        replicas_mean=result.replica_seconds / duration,
        replicas_max=max((point.replicas for point in result.replica_counts), default=len(result.steps)),
        kv_transfer=summarize(timing.kv_transfer_s for timing in timings) if _is_disaggregated(timings) else None,
    )


def _is_disaggregated(timings: Sequence[Timing]) -> bool:
    return any(timing.prefill_replica is not None for timing in timings)


def _average_over_time(
    steps: Sequence[StepLog], columns: Sequence[Sequence[float]], duration: float, *, mean: bool = False
) -> float:
    """Average columns weighted by step duration, with 0 for idle time; summed over the replicas, or their mean."""
    total = 0.0
    for log, column in zip(steps, columns, strict=True):
        lengths: NDArray[np.float64] = np.array(log.ends) - np.array(log.begins)
        total += float(lengths @ np.array(column)) / duration
    return total / len(steps) if mean else total


def render_report(report: Report) -> str:
    """Render the report as text, in milliseconds."""
    lines = [
        f"requests         {report.requests} in {report.duration:.2f} s",
        f"throughput       {report.request_rate:.2f} requests/s, {report.input_token_rate:.0f} input tokens/s, "
        f"{report.output_token_rate:.0f} output tokens/s",
    ]
    if report.good is not None and report.goodput is not None:
        lines.append(f"goodput          {report.goodput:.2f} requests/s ({report.good} within the SLO)")
    lines.append(f"{'milliseconds':<12}{'mean':>12}{'p50':>12}{'p90':>12}{'p99':>12}")
    rows = [("TTFT", report.ttft), ("TPOT", report.tpot), ("ITL", report.itl), ("latency", report.latency)]
    if report.kv_transfer is not None:
        rows.append(("KV transfer", report.kv_transfer))
    for name, row in rows:
        values = (row.mean, row.p50, row.p90, row.p99)
        lines.append(f"{name:<12}" + "".join(f"{1000 * value:>12.2f}" for value in values))
    lines += [
        f"KV cache         {report.kv_usage_mean:.1%} mean, {report.kv_usage_max:.1%} maximum",
        f"prefix cache     {report.cache_hits:.1%} of the prompts' tokens",
        f"running, waiting {report.running_mean:.1f}, {report.waiting_mean:.1f} on average",
        f"preemptions      {report.preemptions}",
    ]
    if report.replicas_mean < report.replicas_max - 1e-9:
        lines.append(f"replicas         {report.replicas_mean:.2f} on average, at most {report.replicas_max}")
    return "\n".join(lines) + "\n"
