"""Calibration of a profile from a log: fitted on some of its requests, evaluated on the
others.

The log is JSON Lines: the fields of a trace (see `workload`) with `first_token_s` and
`last_token_s`, and optionally `scheduled_s`, all on the same clock as `arrival_s`.
`logs` converts the result files of other tools.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from ..engine.config import SimulatedSchedulerConfig
from ..engine.latency import LatencyModel
from ..engine.profile import (
    Calibration,
    ErrorSpread,
    Hardware,
    HeldOutError,
    MetricError,
    ModelProfile,
    Prior,
    RankLayout,
    SimulatorProfile,
    estimate_prior,
)
from .fitting import CalibrationError, MIN_REQUESTS, fit, simulate
from .report import Spread, summarize
from dragoman_check.load.workload import Timing, WorkloadError, WorkloadRequest, read_workload


def read_log(lines: Iterable[str | bytes]) -> tuple[list[WorkloadRequest], list[Timing]]:
    """Parse a log into its workload and, in the same order, its times. Raises
    WorkloadError, which names the line.
    """
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
    prior: expected coefficients; by default estimated from hardware and model.

    Raises: CalibrationError.
    """
    workload, measured = log
    training = [timing for timing in measured if timing.id in fitted_ids]
    if not 0 < len(training) < len(measured):
        raise CalibrationError(
            f"cannot fit {len(training)} of {len(measured)} requests: at least one must be "
            f"fitted, and one held out"
        )
    expected = prior or estimate_prior(hardware, model)
    result = fit(workload, training, engine, expected, ranks=hardware.ranks)
    latency = round_numbers(result.latency)
    frontend = float(f"{result.frontend_seconds:.{DIGITS}g}")
    # Evaluated with the rounded numbers, which are the ones in the profile.
    error = round_numbers(evaluate(log, engine, latency, frontend, fitted_ids, hardware.ranks))
    calibration = Calibration(source, len(training), len(measured) - len(training), error)
    return SimulatorProfile(
        name, hardware, model, engine, latency, frontend, calibration=calibration
    )


def measure_spread(
    log: tuple[Sequence[WorkloadRequest], Sequence[Timing]],
    profile: SimulatorProfile,
    fitted_ids: Collection[str],
    tick: Callable[[int], None] = lambda _: None,
    prior: Prior | None = None,
) -> ErrorSpread:
    """Repeat the fit with arbitrary choices varied, and return the range of the error
    on the held-out requests.

    tick: called with the number of fits done, of NUM_VARIATIONS.
    prior: prior of the profile's own fit.

    Raises: CalibrationError.
    """
    workload, measured = log
    errors: list[HeldOutError] = []
    for timings, ids in list_variations(measured, fitted_ids):
        training = [timing for timing in timings if timing.id in ids]
        ranks = profile.hardware.ranks
        refit = fit(workload, training, profile.engine, prior or profile.prior, ranks=ranks)
        errors.append(
            evaluate(
                (workload, timings),
                profile.engine,
                refit.latency,
                refit.frontend_seconds,
                ids,
                ranks,
            )
        )
        tick(len(errors))
    if profile.calibration is not None and profile.calibration.error is not None:
        errors.append(profile.calibration.error)
    return round_numbers(ErrorSpread(_combine(errors, min), _combine(errors, max)))


NUM_VARIATIONS = 6
CLOCK_SHIFT = 0.001
"""Seconds by which the variations shift the server's clock against the client's."""


def list_variations(
    measured: Sequence[Timing], fitted_ids: Collection[str]
) -> list[tuple[Sequence[Timing], frozenset[str]]]:
    """List variations of the fit, each as timings and ids of fitted requests.

    Two shift the server's clock; four fit other requests: from the middle, from the
    end, two thirds as many, and four thirds as many.
    """
    ids = [timing.id for timing in measured]
    count = len(fitted_ids)
    middle = (len(ids) - count) // 2
    fewer = max(2 * count // 3, min(count, MIN_REQUESTS))
    more = min(4 * count // 3, len(ids) - 1)
    windows = (ids[middle : middle + count], ids[-count:], ids[:fewer], ids[:more])
    variations: list[tuple[Sequence[Timing], frozenset[str]]] = []
    for seconds in (-CLOCK_SHIFT, CLOCK_SHIFT):
        shifted: list[Timing] = []
        for timing in measured:
            scheduled = timing.scheduled_s
            # A shifted time must not precede the arrival.
            first = max(
                timing.first_token_s + seconds,
                timing.arrival_s + min(timing.ttft, CLOCK_SHIFT / 10),
            )
            shifted.append(
                msgspec.structs.replace(
                    timing,
                    scheduled_s=None
                    if scheduled is None
                    else max(scheduled + seconds, timing.arrival_s),
                    first_token_s=first,
                    last_token_s=max(timing.last_token_s + seconds, first),
                )
            )
        variations.append((shifted, frozenset(fitted_ids)))
    return variations + [(measured, frozenset(window)) for window in windows]


def _combine(
    errors: Sequence[HeldOutError], choose: Callable[[Iterable[float]], float]
) -> HeldOutError:
    """Combine errors number by number, with `min` or `max`."""
    metrics = {
        metric: MetricError(
            *(
                choose(getattr(getattr(error, metric), name) for error in errors)
                for name in MetricError.__struct_fields__
            )
        )
        for metric in HeldOutError.__struct_fields__
    }
    return HeldOutError(**metrics)


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
