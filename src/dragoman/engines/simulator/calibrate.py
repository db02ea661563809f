"""Calibration of a profile from a log: fitted on its first requests, evaluated on the others. Does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from .config import SimulatedSchedulerConfig
from .fitting import CalibrationError, fit, simulate
from .latency import LatencyModel
from .measurements import compare
from .profile import Calibration, Hardware, HeldOutError, ModelProfile, SimulatorProfile, estimate_prior
from .timing import Timing
from .workload import WorkloadRequest

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
) -> SimulatorProfile:
    """Calibrate a profile.

    log: as `read_log` returns it, in order of arrival.
    fitted_ids: requests used by the fit. Of the others only arrivals, lengths and prefixes are used until the profile,
        with its numbers rounded as in the file, is evaluated on them.

    Raises: CalibrationError.
    """
    workload, measured = log
    training = [timing for timing in measured if timing.id in fitted_ids]
    if not 0 < len(training) < len(measured):
        raise CalibrationError(
            f"{len(training)} of {len(measured)} requests cannot all be fitted: some must be held out"
        )
    result = fit(workload, training, engine, estimate_prior(hardware, model))
    latency, frontend = round_numbers(result.latency), float(f"{result.frontend_seconds:.{DIGITS}g}")
    error = round_numbers(evaluate(log, engine, latency, frontend, fitted_ids))
    calibration = Calibration(source, len(training), len(measured) - len(training), error)
    return SimulatorProfile(name, hardware, model, engine, latency, frontend, calibration=calibration)


def evaluate(
    log: tuple[Sequence[WorkloadRequest], Sequence[Timing]],
    engine: SimulatedSchedulerConfig,
    latency: LatencyModel,
    frontend_seconds: float,
    excluded: Collection[str],
) -> HeldOutError:
    """Compute the error over all requests but the excluded ones."""
    workload, measured = log
    simulated = {timing.id: timing for timing in simulate(workload, engine, latency, frontend_seconds).timings}
    held_out = [timing for timing in measured if timing.id not in excluded]
    return compare(held_out, [simulated[timing.id] for timing in held_out])


def round_numbers(record: Record) -> Record:
    """Round all numbers of a record to a readable precision."""
    return msgspec.convert(_round_value(msgspec.to_builtins(record)), type(record))


def _round_value(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: _round_value(inner) for key, inner in cast("dict[str, object]", value).items()}
        case list() | tuple():
            return [_round_value(inner) for inner in cast("Sequence[object]", value)]
        case _:
            return value
