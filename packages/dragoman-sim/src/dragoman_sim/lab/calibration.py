"""Calibration of a profile from a log: fitted on some of its requests, evaluated on the
others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from dragoman_check.load.load_statistics import Spread, summarize
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest

from ..engine.latency import LatencyModel
from ..engine.profile import (
    Calibration,
    Hardware,
    HeldOutError,
    MetricError,
    ModelProfile,
    RankLayout,
    SimulatorProfile,
)
from ..engine.scheduler_config import SimulatedSchedulerConfig
from .latency_fit import CalibrationError, fit, simulate
from .prior import Prior, predict_prior


def compare(measured: Sequence[Timing], simulated: Sequence[Timing]) -> HeldOutError:
    """Compute the simulation's relative error for the same requests, metric by metric."""
    return HeldOutError(
        ttft=_compute_error(
            summarize(timing.ttft for timing in measured),
            summarize(timing.ttft for timing in simulated),
        ),
        latency=_compute_error(
            summarize(timing.latency for timing in measured),
            summarize(timing.latency for timing in simulated),
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


DIGITS = 4
"""Significant digits of the numbers in a profile."""
Record = TypeVar("Record", bound=Struct)


def calibrate(
    name: str,
    log: tuple[Sequence[WorkloadRequest], Sequence[Timing]],
    *,
    hardware: Hardware,
    model: ModelProfile,
    engine: SimulatedSchedulerConfig,
    source: str,
    fitted_ids: Collection[str],
    prior: Prior | None = None,
) -> SimulatorProfile:
    """Calibrate a profile.

    log: as `read_log` returns it, in order of arrival.
    source: where the log comes from, for the profile.
    fitted_ids: requests used by the fit. Of the others the fit uses only arrivals,
        lengths and prefixes; the profile, with its numbers rounded as in the file, is
        evaluated on them.
    prior: expected coefficients; by default predicted from hardware and model.

    Raises: CalibrationError.
    """
    workload, measured = log
    training = [timing for timing in measured if timing.id in fitted_ids]
    if not 0 < len(training) < len(measured):
        raise CalibrationError(
            f"cannot fit {len(training)} of {len(measured)} requests: at least one must be "
            f"fitted, and one held out"
        )
    expected = prior or predict_prior(hardware, model)
    result = fit(workload, training, engine, expected, ranks=hardware.ranks)
    latency = round_numbers(result.latency)
    frontend = float(f"{result.frontend_seconds:.{DIGITS}g}")
    # Evaluated with the rounded numbers, which are the ones in the profile.
    error = round_numbers(evaluate(log, engine, latency, frontend, fitted_ids, hardware.ranks))
    calibration = Calibration(source, len(training), len(measured) - len(training), error)
    return SimulatorProfile(
        name, hardware, model, engine, latency, frontend, calibration=calibration
    )


def evaluate(
    log: tuple[Sequence[WorkloadRequest], Sequence[Timing]],
    engine: SimulatedSchedulerConfig,
    latency: LatencyModel,
    frontend_seconds: float,
    excluded: Collection[str],
    ranks: RankLayout,
) -> HeldOutError:
    """Compute the error over all requests but the excluded ones."""
    workload, measured = log
    result = simulate(workload, engine, latency, frontend_seconds, ranks=ranks)
    simulated = {timing.id: timing for timing in result.timings}
    held_out = [timing for timing in measured if timing.id not in excluded]
    return compare(held_out, [simulated[timing.id] for timing in held_out])


def round_numbers(record: Record) -> Record:
    """Round all numbers of a record to DIGITS significant digits."""
    return msgspec.convert(_round_value(msgspec.to_builtins(record)), type(record))


def _round_value(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {
                key: _round_value(inner) for key, inner in cast("dict[str, object]", value).items()
            }
        case list() | tuple():
            return [_round_value(inner) for inner in cast("Sequence[object]", value)]
        case _:
            return value
