"""A profile from a log: fitted on its first requests, judged on the others. All of calibration but reading files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from .config import SchedulerConfig
from .fitting import CalibrationError, fit, simulate
from .measured import compare
from .profile import Calibration, Hardware, Model, Profile, expected
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
    fitted: int,
) -> Profile:
    """log: as `read_log` gives it, in order of arrival. fitted: so many requests, from the first on; of the others
    nothing but arrivals, lengths and prefixes is used until the profile, rounded as it is written, is judged by them.

    Raises CalibrationError.
    """
    workload, measured = log
    if not 0 < fitted < len(measured):
        raise CalibrationError(f"{fitted} of {len(measured)} requests cannot be fitted: some must be held out")
    found = fit(workload, measured[:fitted], engine, expected(hardware, model))
    latency, frontend = rounded(found.latency), float(f"{found.frontend_seconds:.{DIGITS}g}")
    simulated = simulate(workload, engine, latency, frontend).timings
    error = rounded(compare(measured[fitted:], simulated[fitted:]))
    calibration = Calibration(source, fitted, len(measured) - fitted, error)
    return Profile(name, hardware, model, engine, latency, frontend, calibration=calibration)


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
