"""From measured requests to the coefficients of a step's time, by simulating and solving until both agree.

What a log tells is when requests began and ended, not what each step computed. So: simulate with the present
coefficients, add up what the simulated steps compute between a request's arrival (or first step) and its first
token, and between its first and last token; the measured durations of these windows are then linear in the
coefficients. Solve (non-negative, relative errors, outliers held down), and simulate again.

Pure: measurements in, a fit out. It must not be shown the part of a log that it is judged on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from .config import SchedulerConfig
from .engine_core import EngineCore
from .latency import LatencyModel, TokenCost
from .least_squares import Rows, Vector, solve
from .replay import Replayed, replay
from .scheduler import Scheduler
from .timing import Timing
from .windows import BASE, CONTEXT, FRONTEND, KNOTS, NUM_FEATURES, PAIRS, TOKENS, Windows
from .workload import Request

ROUNDS = 10
SETTLED = 3
"""The last so many rounds are averaged: which step a request falls into jumps, so the rounds end in a small cycle."""
STARTS = (0.1, 0.3, 1.0)
TOTAL_WEIGHT = 10.0
"""The means over all requests count as much as so many squared single ones: they are what is reported, and a robust
fit of single requests alone leaves them biased."""
PRIOR_WEIGHT = 1.0
FEWEST = 20
STRAIGHTNESS = 0.3
"""How much the curve over the tokens of a step resists bending. Decoding and prefill alone can hardly tell it."""


class CalibrationError(ValueError):
    """The measurements cannot be fitted; the message says why."""


class Prior(Struct, frozen=True, forbid_unknown_fields=True):
    """What hardware and model let one expect, in seconds; None is no expectation.

    base: a log of a saturated server does not tell it from what grows with the load. frontend: from the client to
    the queue.
    """

    base: float | None = None
    per_context_token: float | None = None
    frontend: float = 0.001


class Fit(Struct, frozen=True):
    """residual: median relative deviation of the windows' durations from what the coefficients give."""

    latency: LatencyModel
    frontend_seconds: float
    residual: float


def prior_of(
    *, weight_bytes: float, kv_bytes_per_token: float, memory_bandwidth: float, tensor_parallel: int = 1
) -> Prior:
    """bytes, bytes per second of one device. A step reads all weights once, at about four fifths of the bandwidth."""
    bandwidth = memory_bandwidth * tensor_parallel
    return Prior(base=1.25 * weight_bytes / bandwidth, per_context_token=kv_bytes_per_token / bandwidth)


def simulate(
    workload: Sequence[Request],
    config: SchedulerConfig,
    latency: LatencyModel,
    frontend_seconds: float = 0.0,
    until: frozenset[str] | None = None,
) -> Replayed:
    """One replica, without noise. until: stop when all of these requests are answered."""
    core = EngineCore(Scheduler(config), latency.seconds)
    return replay(workload, [core], frontend_seconds=frontend_seconds, until=until)


def fit(
    workload: Sequence[Request],
    observed: Sequence[Timing],
    config: SchedulerConfig,
    prior: Prior,
    rounds: int = ROUNDS,
) -> Fit:
    """Coefficients under which the simulated requests take as long as the observed ones.

    workload: everything that the server was asked, as the observed requests shared it with all others; only their
    arrivals and lengths are read. observed: measured times of some of them, with scheduled_s where it is known.
    config: the server's real settings. Raises CalibrationError.
    """
    _check(workload, observed)
    trials: list[_Trial] = []
    guess = _start(observed, prior)
    token = float(guess[TOKENS][-1])
    for factor in STARTS:
        start = guess.copy()
        start[TOKENS] *= factor
        trials.append(_try(start, workload, observed, config))
    best, stride = min(trials, key=lambda trial: trial.error), 1.0
    solved = _solve(best.windows, prior, token)
    for _ in range(rounds):
        trial = _try((1 - stride) * best.coefficients + stride * solved, workload, observed, config)
        trials.append(trial)
        if trial.error < best.error:
            best, stride = trial, min(1.0, 2 * stride)
            solved = _solve(best.windows, prior, token)
        else:
            stride /= 2
    trials.sort(key=lambda trial: trial.error)
    settled = np.mean([trial.coefficients for trial in trials[:SETTLED]], axis=0)
    return Fit(_model(settled), float(settled[FRONTEND]), best.error)


class _Trial(NamedTuple):
    coefficients: Vector
    windows: Windows
    error: float


def _try(
    coefficients: Vector, workload: Sequence[Request], observed: Sequence[Timing], config: SchedulerConfig
) -> _Trial:
    frontend = float(coefficients[FRONTEND])
    ids = frozenset(timing.id for timing in observed)
    replayed = simulate(workload, config, _model(coefficients), frontend, until=ids)
    return _Trial(coefficients, Windows(replayed, observed, frontend), _error(replayed, observed))


def _error(replayed: Replayed, observed: Sequence[Timing]) -> float:
    ours = {timing.id: timing for timing in replayed.timings}
    pairs = [(ours[timing.id], timing) for timing in observed]
    ttft = np.array([(x.ttft, y.ttft) for x, y in pairs])
    decode = np.array([(x.last_token_s-x.first_token_s, y.last_token_s-y.first_token_s) for x, y in pairs])
    lat = ttft + decode
    decode = decode[decode.min(axis=1) > 0]
    single = np.mean([np.minimum(np.abs(np.log(t[:, 0] / t[:, 1])), 1.0).mean() for t in (ttft, decode)])
    means = np.mean([min(1.0, abs(float(np.log(t[:, 0].mean() / t[:, 1].mean())))) for t in (ttft, lat, decode)])
    return float(single + means)


def _solve(windows: Windows, prior: Prior, token: float) -> Vector:
    totals = windows.totals()
    firm = [
        Rows(totals.features * TOTAL_WEIGHT, totals.targets * TOTAL_WEIGHT),
        _expectations({BASE: prior.base, CONTEXT: prior.per_context_token, FRONTEND: prior.frontend}),
        _straight(token),
    ]
    features, targets = np.vstack([rows.features for rows in firm]), np.concatenate([rows.targets for rows in firm])
    return solve(windows.singles(), Rows(features, targets))[0]


def _expectations(expected: Mapping[int, float | None]) -> Rows:
    """A row for each expectation: to be off by all of it costs PRIOR_WEIGHT squared."""
    known = {column: value for column, value in expected.items() if value is not None}
    features = np.zeros((len(known), NUM_FEATURES))
    for row, (column, value) in enumerate(known.items()):
        features[row, column] = PRIOR_WEIGHT / value
    return Rows(features, np.full(len(known), PRIOR_WEIGHT))


def _straight(token: float) -> Rows:
    """A row for each bend of the curve; token: about what one costs, in seconds."""
    slopes = np.eye(NUM_FEATURES)[TOKENS]
    features = (slopes[:-1] - slopes[1:]) * STRAIGHTNESS / token
    return Rows(features, np.zeros(len(features)))


def _model(coefficients: Vector) -> LatencyModel:
    curve = zip(KNOTS, coefficients[TOKENS], strict=True)
    return LatencyModel(
        base=float(coefficients[BASE]),
        per_token=tuple(TokenCost(beyond, float(seconds)) for beyond, seconds in curve),
        per_context_token=float(coefficients[CONTEXT]),
        per_prefill_pair=float(coefficients[PAIRS]),
    )


def _check(workload: Sequence[Request], observed: Sequence[Timing]) -> None:
    known = {request.id for request in workload}
    for timing in observed:
        if timing.id not in known:
            raise CalibrationError(f"request {timing.id!r} was observed, but is not in the workload")
        if not timing.arrival_s < timing.first_token_s <= timing.last_token_s:
            raise CalibrationError(f"request {timing.id!r}: arrival, first and last token are not in this order")
    if len(observed) < FEWEST or all(timing.tpot is None for timing in observed):
        raise CalibrationError(f"at least {FEWEST} requests are needed, some of them with two or more output tokens")


def _start(observed: Sequence[Timing], prior: Prior) -> Vector:
    """A first guess: the fastest decoding, the fastest prefill."""
    tpots = [timing.tpot for timing in observed if timing.tpot]
    prefills = [timing.ttft / timing.input_tokens for timing in observed]
    guess = np.zeros(NUM_FEATURES)
    guess[BASE] = prior.base or 0.7 * float(np.min(tpots))
    guess[TOKENS] = float(np.quantile(prefills, 0.05))
    guess[FRONTEND] = prior.frontend
    return guess
