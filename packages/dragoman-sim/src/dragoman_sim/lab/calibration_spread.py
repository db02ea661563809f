"""The range of a calibration's error over arbitrary choices of the fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest

from ..engine.profile import (
    ErrorSpread,
    HeldOutError,
    MetricError,
    SimulatorProfile,
)
from .calibration import evaluate, round_numbers
from .latency_fit import MIN_REQUESTS, fit
from .prior import Prior, predict_prior


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
    prior: prior of the profile's own fit; by default predicted from hardware and model.

    Raises: CalibrationError.
    """
    workload, measured = log
    expected = prior or predict_prior(profile.hardware, profile.model)
    errors: list[HeldOutError] = []
    for timings, ids in list_variations(measured, fitted_ids):
        training = [timing for timing in timings if timing.id in ids]
        ranks = profile.hardware.ranks
        refit = fit(workload, training, profile.engine, expected, ranks=ranks)
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
