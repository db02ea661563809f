"""The report of a simulated run: percentiles, goodput, throughput, cache hits,
preemptions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from dragoman_check.load.load_statistics import Slo, Spread, summarize
from dragoman_check.load.request_timing import Timing

from .least_squares import Vector
from .replay_result import ReplayResult, StepLog


class Report(Struct, frozen=True):
    """The figures of a run. Times are in seconds, rates per second, shares from 0 to 1.

    requests: answered requests.
    duration: time from the first arrival to the last token.
    ttft: time to first token.
    tpot: mean time per output token after the first, per request.
    itl: inter-token latency, over all pairs of consecutive tokens.
    latency: time to the last token.
    good: requests within the SLO; None without an SLO.
    goodput: rate of these requests; None without an SLO.
    kv_usage_mean, kv_usage_max: share of the KV cache in use, over time and all
        replicas.
    running_mean, waiting_mean: requests on all replicas together, over time.
    cache_hits: share of prompt tokens found in the prefix cache.
    replicas_mean, replicas_max: replicas over time, including starting and draining
        ones.
    kv_transfer: duration of transfers from a prefill replica; None for aggregated
        serving.
    host_cache_hits: share of prompt tokens loaded from host memory, which `cache_hits`
        includes; None without KV offloading.
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
    host_cache_hits: float | None = None


class ReportColumns(Struct, frozen=True):
    """The data of a report: columns with a row per answered request, and integrals over
    the time of all steps.

    arrivals, first_tokens, last_tokens: seconds.
    inputs, outputs: tokens.
    gaps: inter-token latencies.
    kv_seconds, running_seconds, waiting_seconds: share of the cache in use, running
        requests and waiting requests; integrated over time and summed over the
        replicas.
    kv_max: maximum share of the cache in use, over all replicas.
    transfers: seconds of each KV transfer; None for aggregated serving.
    host_tokens: prompt tokens loaded from host memory; None without KV offloading.
    """

    arrivals: Vector
    first_tokens: Vector
    last_tokens: Vector
    inputs: Vector
    outputs: Vector
    gaps: Spread
    kv_seconds: float
    running_seconds: float
    waiting_seconds: float
    kv_max: float
    preemptions: int
    replicas: int
    replicas_mean: float
    replicas_max: int
    cached_tokens: int = 0
    transfers: Vector | None = None
    host_tokens: int | None = None

    def build_report(self, slo: Slo | None) -> Report:
        """Build the report; at least one request must have been answered."""
        count = len(self.arrivals)
        if not count:
            raise ValueError("no request was answered")
        duration = float(self.last_tokens.max() - self.arrivals.min())
        ttft = self.first_tokens - self.arrivals
        latency = self.last_tokens - self.arrivals
        # A response of one token has no TPOT; vLLM's benchmark excludes such requests
        # too.
        has_tpot = self.outputs > 1
        tpot = (self.last_tokens - self.first_tokens)[has_tpot] / (self.outputs[has_tpot] - 1)
        good: int | None = None
        if slo is not None:
            # `Slo.is_met`, vectorized.
            slo_tpot = (self.last_tokens - self.first_tokens) / np.maximum(self.outputs - 1, 1)
            slo_tpot[self.outputs < 2] = 0.0
            is_good = np.ones(count, dtype=bool)
            for limit, values in ((slo.ttft, ttft), (slo.tpot, slo_tpot), (slo.latency, latency)):
                if limit is not None:
                    is_good &= values <= limit
            good = int(is_good.sum())
        return Report(
            requests=count,
            duration=duration,
            ttft=summarize(ttft),
            tpot=summarize(tpot),
            itl=self.gaps,
            latency=summarize(latency),
            request_rate=count / duration,
            input_token_rate=float(self.inputs.sum()) / duration,
            output_token_rate=float(self.outputs.sum()) / duration,
            good=good,
            goodput=None if good is None else good / duration,
            kv_usage_mean=self.kv_seconds / duration / self.replicas,
            kv_usage_max=self.kv_max,
            running_mean=self.running_seconds / duration,
            waiting_mean=self.waiting_seconds / duration,
            preemptions=self.preemptions,
            cache_hits=self.cached_tokens / float(self.inputs.sum()),
            replicas_mean=self.replicas_mean,
            replicas_max=self.replicas_max,
            kv_transfer=None if self.transfers is None else summarize(self.transfers),
            host_cache_hits=None
            if self.host_tokens is None
            else self.host_tokens / float(self.inputs.sum()),
        )


def build_report(result: ReplayResult, slo: Slo | None = None) -> Report:
    """Build the report of a run; at least one request must have been answered."""
    timings = result.timings
    steps = result.steps

    def read(column: Callable[[Timing], float]) -> Vector:
        return np.fromiter(
            (column(timing) for timing in timings), dtype=np.float64, count=len(timings)
        )

    is_disaggregated = any(timing.prefill_replica is not None for timing in timings)
    duration = max((timing.last_token_s for timing in timings), default=0.0)
    duration -= min((timing.arrival_s for timing in timings), default=0.0)
    return ReportColumns(
        arrivals=read(lambda timing: timing.arrival_s),
        first_tokens=read(lambda timing: timing.first_token_s),
        last_tokens=read(lambda timing: timing.last_token_s),
        inputs=read(lambda timing: timing.input_tokens),
        outputs=read(lambda timing: timing.output_tokens),
        gaps=summarize(result.gaps),
        kv_seconds=_integrate(steps, [log.kv_usage for log in steps]),
        running_seconds=_integrate(steps, [log.running for log in steps]),
        waiting_seconds=_integrate(steps, [log.waiting for log in steps]),
        kv_max=max((max(log.kv_usage, default=0.0) for log in steps), default=0.0),
        preemptions=sum(timing.preemptions for timing in timings),
        cached_tokens=sum(timing.cached_tokens for timing in timings),
        replicas=len(steps),
        replicas_mean=result.replica_seconds / duration if duration else 0.0,
        replicas_max=max((point.replicas for point in result.replica_counts), default=len(steps)),
        transfers=read(lambda timing: timing.kv_transfer_s) if is_disaggregated else None,
        host_tokens=sum(timing.host_tokens for timing in timings)
        if result.has_host_cache
        else None,
    ).build_report(slo)


def _integrate(steps: Sequence[StepLog], columns: Sequence[Sequence[float]]) -> float:
    """Integrate a column over time, and sum over all replicas."""
    return sum(
        float((np.array(log.ends) - np.array(log.begins)) @ np.array(column))
        for log, column in zip(steps, columns, strict=True)
    )


def render_report(report: Report) -> str:
    """Render the report as text, with times in milliseconds."""
    lines = [
        f"requests         {report.requests} in {report.duration:.2f} s",
        f"throughput       {report.request_rate:.2f} requests/s, {report.input_token_rate:.0f} "
        f"input tokens/s, "
        f"{report.output_token_rate:.0f} output tokens/s",
    ]
    if report.good is not None and report.goodput is not None:
        lines.append(
            f"goodput          {report.goodput:.2f} requests/s ({report.good} within the SLO)"
        )
    lines.append(f"{'milliseconds':<12}{'mean':>12}{'p50':>12}{'p90':>12}{'p99':>12}")
    rows = [
        ("TTFT", report.ttft),
        ("TPOT", report.tpot),
        ("ITL", report.itl),
        ("latency", report.latency),
    ]
    if report.kv_transfer is not None:
        rows.append(("KV transfer", report.kv_transfer))
    for name, row in rows:
        values = (row.mean, row.p50, row.p90, row.p99)
        lines.append(f"{name:<12}" + "".join(f"{1000 * value:>12.2f}" for value in values))
    tiers = ""
    if report.host_cache_hits is not None:
        device_hits = report.cache_hits - report.host_cache_hits
        tiers = f": {device_hits:.1%} device, {report.host_cache_hits:.1%} host"
    lines += [
        f"KV cache         {report.kv_usage_mean:.1%} mean, {report.kv_usage_max:.1%} maximum",
        f"prefix cache     {report.cache_hits:.1%} of the prompts' tokens{tiers}",
        f"running, waiting {report.running_mean:.1f}, {report.waiting_mean:.1f} on average",
        f"preemptions      {report.preemptions}",
    ]
    if report.replicas_mean < report.replicas_max - 1e-9:
        lines.append(
            f"replicas         {report.replicas_mean:.2f} on average, at most {report.replicas_max}"
        )
    return "\n".join(lines) + "\n"
