"""From measured requests to the coefficients of a step's time, by simulating and solving until both agree.

What a log tells is when requests began and ended, not what each step computed. So: simulate with the present
coefficients, add up what the simulated steps compute between a request's arrival (or first step) and its first
token, and between its first and last token; the measured durations of these windows are then linear in the
coefficients. Solve (non-negative, relative errors, outliers held down), and simulate again.

Pure: measurements in, a fit out. It must not be shown the part of a log that it is judged on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from .config import SchedulerConfig
from .engine_core import EngineCore
from .latency import LatencyModel
from .least_squares import Ridge, Vector, solve
from .replay import Replayed, replay
from .scheduler import Scheduler
from .timing import Timing
from .windows import FEATURES, Windows
from .workload import Request

ROUNDS = 10
SETTLED = 3
"""The last so many rounds are averaged: which step a request falls into jumps, so the rounds end in a small cycle."""
DAMPING = 0.5
PRIOR_WEIGHT = 1.0
TOTAL_WEIGHT = 10.0
"""The sums over all requests count as much as so many squared single ones: what is reported is means, and a robust
fit of single requests alone leaves them biased."""


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
    prior: Prior = Prior(),
    rounds: int = ROUNDS,
) -> Fit:
    """Coefficients under which the simulated requests take as long as the observed ones.

    workload: everything that the server was asked, as the observed requests shared it with all others; only their
    arrivals and lengths are read. observed: measured times of some of them, with scheduled_s where it is known.
    config: the server's real settings. Raises CalibrationError.
    """
    _check(workload, observed)
    ids = frozenset(timing.id for timing in observed)
    coefficients, residual, history = _start(observed, prior), 0.0, list[Vector]()
    for _ in range(rounds):
        latency, frontend = _model(coefficients)
        replayed = simulate(workload, config, latency, frontend, until=ids)
        solved, residual = _solve(Windows(replayed, observed, frontend), prior)
        coefficients = DAMPING * coefficients + (1 - DAMPING) * solved if history else solved
        history.append(coefficients)
    latency, frontend = _model(np.mean(history[-SETTLED:], axis=0))
    return Fit(latency, frontend, residual)


def _solve(windows: Windows, prior: Prior) -> tuple[Vector, float]:
    expected = {"base": prior.base, "per_context_token": prior.per_context_token, "frontend": prior.frontend}
    ridges = [
        Ridge(FEATURES.index(name), value, PRIOR_WEIGHT) for name, value in expected.items() if value is not None
    ]
    singles, totals = windows.singles(), windows.totals()
    return solve(singles, totals, total_weight=TOTAL_WEIGHT, ridges=ridges)


def _model(coefficients: Vector) -> tuple[LatencyModel, float]:
    named = {name: float(value) for name, value in zip(FEATURES, coefficients, strict=True)}
    frontend = named.pop("frontend")
    return LatencyModel(**named), frontend


def _check(workload: Sequence[Request], observed: Sequence[Timing]) -> None:
    known = {request.id for request in workload}
    for timing in observed:
        if timing.id not in known:
            raise CalibrationError(f"request {timing.id!r} was observed, but is not in the workload")
        if not timing.arrival_s < timing.first_token_s <= timing.last_token_s:
            raise CalibrationError(f"request {timing.id!r}: arrival, first and last token are not in this order")
    if len(observed) < 2 * len(FEATURES) or all(timing.output_tokens < 2 for timing in observed):
        raise CalibrationError(f"at least {2 * len(FEATURES)} requests are needed, some with two or more output tokens")


def _start(observed: Sequence[Timing], prior: Prior) -> Vector:
    """A first guess: the fastest decoding, the fastest prefill."""
    tpots = [timing.tpot for timing in observed if timing.tpot]
    prefills = [timing.ttft / timing.input_tokens for timing in observed]
    guess = np.zeros(len(FEATURES))
    guess[FEATURES.index("base")] = prior.base or 0.7 * float(np.min(tpots))
    guess[FEATURES.index("per_token")] = float(np.quantile(prefills, 0.05))
    guess[FEATURES.index("frontend")] = prior.frontend
    return guess
