"""A log of measured requests as JSON Lines: what was asked, and when it was answered.

The fields are those of a trace (see `workload`) with `first_token_s` and `last_token_s`, and `scheduled_s` where it
is known; all on one clock with `arrival_s`. Other result files are turned into this by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from .profile import HeldOut, MetricError
from .report import Spread, spread
from .timing import Timing
from .workload import Request, WorkloadError, read


def read_log(lines: Iterable[str | bytes]) -> tuple[list[Request], list[Timing]]:
    """The workload and, in the same order, the times. Raises WorkloadError, which names the line."""
    told = list(lines)
    requests = read(told)
    decoder = msgspec.json.Decoder(Timing)
    timings: list[Timing] = []
    for number, line in enumerate(told, start=1):
        if not line.strip():
            continue
        try:
            timings.append(decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise WorkloadError(f"line {number}: {error}") from None
    return requests, timings


def compare(measured: Sequence[Timing], simulated: Sequence[Timing]) -> HeldOut:
    """How far the simulation of the same requests is off, metric by metric."""
    return HeldOut(
        ttft=_off(spread(timing.ttft for timing in measured), spread(timing.ttft for timing in simulated)),
        latency=_off(spread(timing.latency for timing in measured), spread(timing.latency for timing in simulated)),
        tpot=_off(
            spread(timing.tpot for timing in measured if timing.tpot),
            spread(timing.tpot for timing in simulated if timing.tpot),
        ),
    )


def _off(measured: Spread, simulated: Spread) -> MetricError:
    return MetricError(
        mean=simulated.mean / measured.mean - 1,
        p50=simulated.p50 / measured.p50 - 1,
        p90=simulated.p90 / measured.p90 - 1,
        p99=simulated.p99 / measured.p99 - 1,
    )
