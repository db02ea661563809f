"""A profile from a log: fitted on its first requests, judged on the others. All of calibration but reading files."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from .config import SchedulerConfig
from .fitting import CalibrationError, fit, simulate
from .latency import LatencyModel
from .measured import compare
from .profile import Calibration, Hardware, HeldOut, Model, Profile, expected
from .timing import Timing
from .workload import Request

DIGITS = 4
"""Significant ones, of what a person reads in a profile."""
Record = TypeVar("Record", bound=Struct)


def calibrate(
    name: str,
    log: tuple[Sequence[Request], Sequence[Timing]],
    *,
    hardware: Hardware,
    model: Model,
    engine: SchedulerConfig,
    source: str,
    fitted: Collection[str],
) -> Profile:
    """log: as `read_log` gives it, in order of arrival. fitted: ids of the requests that are shown to the fit; of the
    others nothing but arrivals, lengths and prefixes is used until the profile, rounded as it is written, is judged by
    them.

    Raises CalibrationError.
    """
    workload, measured = log
    shown = [timing for timing in measured if timing.id in fitted]
    if not 0 < len(shown) < len(measured):
        raise CalibrationError(f"{len(shown)} of {len(measured)} requests cannot all be fitted: some must be held out")
    found = fit(workload, shown, engine, expected(hardware, model))
    latency, frontend = rounded(found.latency), float(f"{found.frontend_seconds:.{DIGITS}g}")
    error = rounded(judge(log, engine, latency, frontend, fitted))
    calibration = Calibration(source, len(shown), len(measured) - len(shown), error)
    return Profile(name, hardware, model, engine, latency, frontend, calibration=calibration)


def judge(
    log: tuple[Sequence[Request], Sequence[Timing]],
    engine: SchedulerConfig,
    latency: LatencyModel,
    frontend_seconds: float,
    but: Collection[str],
) -> HeldOut:
    """The error over all requests but these."""
    workload, measured = log
    simulated = {timing.id: timing for timing in simulate(workload, engine, latency, frontend_seconds).timings}
    held_out = [timing for timing in measured if timing.id not in but]
    return compare(held_out, [simulated[timing.id] for timing in held_out])


def rounded(record: Record) -> Record:
    """The same with all its numbers as a person would write them."""
    return msgspec.convert(_short(msgspec.to_builtins(record)), type(record))


def _short(value: object) -> object:
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case dict():
            return {key: _short(inner) for key, inner in cast("dict[str, object]", value).items()}
        case list() | tuple():
            return [_short(inner) for inner in cast("Sequence[object]", value)]
        case _:
            return value
