"""A log of measured requests as JSON Lines: lengths and times.

The fields are those of a trace (see `workload`) with `first_token_s` and `last_token_s`, and optionally `scheduled_s`;
all on one clock with `arrival_s`. `logs` converts the result files of other tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from .profile import HeldOutError, MetricError
from .report import Spread, summarize
from .timing import Timing
from .workload import WorkloadError, WorkloadRequest, read_workload


def read_log(lines: Iterable[str | bytes]) -> tuple[list[WorkloadRequest], list[Timing]]:
    """The workload and, in the same order, the times. Raises WorkloadError, which names the line."""
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


def compare(measured: Sequence[Timing], simulated: Sequence[Timing]) -> HeldOutError:
    """Compute the simulation's error for the same requests, metric by metric."""
    return HeldOutError(
        ttft=_compute_error(
            summarize(timing.ttft for timing in measured), summarize(timing.ttft for timing in simulated)
        ),
        latency=_compute_error(
            summarize(timing.latency for timing in measured), summarize(timing.latency for timing in simulated)
        ),
        tpot=_compute_error(
            summarize(timing.tpot for timing in measured if timing.tpot),
            summarize(timing.tpot for timing in simulated if timing.tpot),
        ),
    )


def _compute_error(measured: Spread, simulated: Spread) -> MetricError:
    return MetricError(
        mean=simulated.mean / measured.mean - 1,
        p50=simulated.p50 / measured.p50 - 1,
        p90=simulated.p90 / measured.p90 - 1,
        p99=simulated.p99 / measured.p99 - 1,
    )
