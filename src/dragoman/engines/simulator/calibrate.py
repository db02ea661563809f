"""A profile from a log: fitted on its first requests, judged on the others. All of calibration but reading files."""

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
"""Significant ones, of what a person reads in a profile."""
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
    """log: as `read_log` gives it, in order of arrival. fitted: ids of the requests that are shown to the fit; of the
    others nothing but arrivals, lengths and prefixes is used until the profile, rounded as it is written, is judged by
    them.

    Raises CalibrationError.
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
    """The error over all requests but these."""
    workload, measured = log
    simulated = {timing.id: timing for timing in simulate(workload, engine, latency, frontend_seconds).timings}
    held_out = [timing for timing in measured if timing.id not in excluded]
    return compare(held_out, [simulated[timing.id] for timing in held_out])


def round_numbers(record: Record) -> Record:
    """The same with all its numbers as a person would write them."""
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
