"""Fits the coefficients of a step's duration to measured requests, by repeated simulation and solving.

A log contains when requests began and ended, not what each step computed. So: simulate with the present coefficients,
add up what the simulated steps compute between a request's arrival and its first token, and between its first and last
token; the measured durations of these windows are then linear in the coefficients. Solve (non-negative, relative
errors, robust to outliers), and simulate again.

Pure: measurements in, a fit out. Do not pass the held-out part of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct

from .config import SimulatedSchedulerConfig
from .engine_core import EngineCore
from .latency import LatencyModel, TokenCost
from .least_squares import Rows, Vector, solve
from .lock_step import replay_in_lock_step
from .replay import ReplayResult, replay
from .routing import ReplicaRouter
from .scheduler import SimulatedScheduler
from .timing import Timing
from .windows import BASE, CONTEXT, EXPERTS, FRONTEND, KNOTS, MIXED, NUM_FEATURES, PAIRS, TOKENS, MeasuredWindows
from .workload import WorkloadRequest

MIN_REQUESTS = 20
START_FACTORS = (0.1, 0.3, 1.0)
"""First guesses: shares of the fastest prefill that a token may cost."""
HALF_STEP_ROUNDS, LINE_SEARCH_ROUNDS = 6, 8
"""Rounds that always go half of the way to the solution, and rounds that only go where it gets better. Near
saturation the first ones may jump about for ever, far from the truth the others may get stuck."""
AVERAGED_TRIALS = 3
"""So many best trials are averaged: which step a request falls into jumps, so the best one is partly luck."""
MAX_ERROR_RATIO = 1.5
"""So much worse than the best may their average be, lest they lie in different valleys."""
TOTAL_WEIGHT = 10.0
"""The means over all requests count as much as so many squared single ones: they are what is reported, and a robust
fit of single requests alone leaves them biased."""
PRIOR_WEIGHT = 1.0
CURVATURE_WEIGHT = 0.3
"""How much the curve over the tokens of a step resists bending. Decoding and prefill alone can hardly tell it."""


class CalibrationError(ValueError):
    """The measurements cannot be fitted; the message says why."""


class Prior(Struct, frozen=True, forbid_unknown_fields=True):
    """Expected coefficients from hardware and model, in seconds; None is no expectation.

    base: a log of a saturated server does not separate it from load-dependent cost.
    frontend: from the client to the queue.
    per_expert_token: of experts that data-parallel ranks share; the fit scales the curve as a whole.
    """

    base: float | None = None
    per_context_token: float | None = None
    frontend: float = 0.001
    per_expert_token: tuple[TokenCost, ...] = ()


class Fit(Struct, frozen=True):
    """A fitted latency model.

    frontend_seconds: from the client to the engine's queue.
    error: the minimized error, see `MeasuredWindows.compute_error`; more than 0.2 is a poor fit.
    """

    latency: LatencyModel
    frontend_seconds: float
    error: float


def build_prior(
    *,
    weight_bytes: float,
    kv_bytes_per_token: float | None,
    memory_bandwidth: float,
    tensor_parallel: int = 1,
    all_reduce_seconds: float = 0.0,
) -> Prior:
    """The expectation of a roofline: bytes, and bytes per second of one device.

    A step reads all weights once, at about four fifths of the bandwidth. all_reduce_seconds: of all layers together,
    without the bytes of the tokens.
    """
    bandwidth = memory_bandwidth * tensor_parallel
    context = None if kv_bytes_per_token is None else kv_bytes_per_token / bandwidth
    return Prior(base=1.25 * weight_bytes / bandwidth + all_reduce_seconds, per_context_token=context)


class RankLayout(Struct, frozen=True):
    """The data-parallel ranks of a server. lock_step: they share experts, so that they step together."""

    count: int = 1
    lock_step: bool = False


ONE_RANK = RankLayout()


def simulate(
    workload: Sequence[WorkloadRequest],
    config: SimulatedSchedulerConfig,
    latency: LatencyModel,
    frontend_seconds: float = 0.0,
    until: frozenset[str] | None = None,
    ranks: RankLayout = ONE_RANK,
) -> ReplayResult:
    """One server, without noise, whose ranks are chosen as by vLLM. until: stop when all of these requests are
    answered."""
    cores = [EngineCore(SimulatedScheduler(config), latency.compute_seconds) for _ in range(ranks.count)]
    router = ReplicaRouter("least-loaded")
    if ranks.lock_step and ranks.count > 1:
        return replay_in_lock_step(
            workload, cores, ranks.count, router=router, frontend_seconds=frontend_seconds, until=until
        )
    return replay(workload, cores, router=router, frontend_seconds=frontend_seconds, until=until)


def fit(
    workload: Sequence[WorkloadRequest],
    observed: Sequence[Timing],
    config: SimulatedSchedulerConfig,
    prior: Prior,
    excluded_columns: Collection[int] = (),
    ranks: RankLayout = ONE_RANK,
) -> Fit:
    """Fit coefficients under which the simulated requests take as long as the observed ones.

    workload: all requests to the server, since the observed ones shared it with them; only arrivals and lengths are
        read.
    observed: measured times of some of them.
    config: the server's real settings, of one rank.
    excluded_columns: columns of the linear system (see `windows`) that stay 0, for ablation.

    Raises: CalibrationError; RequestError for a request that could never run with these settings.
    """
    _check_measurements(workload, observed)
    return _Search(workload, observed, config, prior, excluded_columns, ranks).run()


class _Trial(Struct, frozen=True):
    coefficients: Vector
    windows: MeasuredWindows
    error: float


class _Search:
    """Gauss-Newton steps, each from a simulation of its own."""

    def __init__(
        self,
        workload: Sequence[WorkloadRequest],
        observed: Sequence[Timing],
        config: SimulatedSchedulerConfig,
        prior: Prior,
        excluded_columns: Collection[int],
        ranks: RankLayout,
    ) -> None:
        self._workload, self._observed, self._config, self._ranks = workload, observed, config, ranks
        self._expert_curve = prior.per_expert_token
        self._ids = frozenset(timing.id for timing in observed)
        self._column_mask = np.array(
            [column not in excluded_columns for column in range(NUM_FEATURES)], dtype=np.float64
        )
        # The measured dense runs are not fitted better with it.
        self._column_mask[MIXED] *= bool(prior.per_expert_token)
        self._guess = _guess_coefficients(observed, prior) * self._column_mask
        self._regularization = _stack_rows(
            _build_prior_rows(prior), _build_curvature_rows(float(_guess_coefficients(observed, prior)[TOKENS][-1]))
        )
        self._trials: list[_Trial] = []

    def run(self) -> Fit:
        for factor in START_FACTORS:
            start = self._guess.copy()
            # The error has local minima, since a different step time changes which requests share a step.
            start[TOKENS] *= factor
            self._run_trial(start)
        self._run_half_steps()
        self._run_line_search()
        best = sorted(self._trials, key=lambda trial: trial.error)[:AVERAGED_TRIALS]
        # The best trials differ by chance in what the data does not determine; their mean is steadier than any one of
        # them.
        averaged = self._run_trial(np.mean([trial.coefficients for trial in best], axis=0))
        chosen = averaged if averaged.error < MAX_ERROR_RATIO * best[0].error else best[0]
        return Fit(self._build_latency_model(chosen.coefficients), float(chosen.coefficients[FRONTEND]), chosen.error)

    def _run_half_steps(self) -> None:
        trial = self._find_best_trial()
        for _ in range(HALF_STEP_ROUNDS):
            trial = self._run_trial((trial.coefficients + self._solve(trial)) / 2)

    def _run_line_search(self) -> None:
        best, stride = self._find_best_trial(), 1.0
        solved = self._solve(best)
        for _ in range(LINE_SEARCH_ROUNDS):
            trial = self._run_trial((1 - stride) * best.coefficients + stride * solved)
            if trial.error < best.error:
                best, stride = trial, min(1.0, 2 * stride)
                solved = self._solve(best)
            else:
                stride /= 2

    def _find_best_trial(self) -> _Trial:
        return min(self._trials, key=lambda trial: trial.error)

    def _run_trial(self, coefficients: Vector) -> _Trial:
        frontend = float(coefficients[FRONTEND])
        latency = self._build_latency_model(coefficients)
        result = simulate(self._workload, self._config, latency, frontend, self._ids, self._ranks)
        windows = MeasuredWindows(result, self._observed, frontend, self._expert_curve)
        trial = _Trial(coefficients, windows, windows.compute_error())
        self._trials.append(trial)
        return trial

    def _build_latency_model(self, coefficients: Vector) -> LatencyModel:
        curve = zip(KNOTS, coefficients[TOKENS], strict=True)
        scale = float(coefficients[EXPERTS])
        return LatencyModel(
            base=float(coefficients[BASE]),
            per_token=tuple(TokenCost(beyond, float(seconds)) for beyond, seconds in curve),
            per_context_token=float(coefficients[CONTEXT]),
            per_prefill_pair=float(coefficients[PAIRS]),
            per_mixed_sequence=float(coefficients[MIXED]),
            per_expert_token=tuple(TokenCost(cost.beyond, scale * cost.seconds) for cost in self._expert_curve),
        )

    def _solve(self, trial: _Trial) -> Vector:
        totals = trial.windows.build_mean_rows()
        weighted = Rows(totals.features * TOTAL_WEIGHT, totals.targets * TOTAL_WEIGHT)
        requests, regularization = trial.windows.build_request_rows(), _stack_rows(weighted, self._regularization)
        try:
            return solve(
                Rows(requests.features * self._column_mask, requests.targets),
                Rows(regularization.features * self._column_mask, regularization.targets),
            )
        except ValueError as error:
            raise CalibrationError(f"{error}: are arrival and token times on one clock?") from None


def _build_prior_rows(prior: Prior) -> Rows:
    """A row for each expectation: to be off by all of it costs PRIOR_WEIGHT squared."""
    expected: Mapping[int, float | None] = {
        BASE: prior.base,
        CONTEXT: prior.per_context_token,
        EXPERTS: 1.0 if prior.per_expert_token else None,
        FRONTEND: prior.frontend,
    }
    known = {column: value for column, value in expected.items() if value}
    features = np.zeros((len(known), NUM_FEATURES))
    for row, (column, value) in enumerate(known.items()):
        features[row, column] = PRIOR_WEIGHT / value
    return Rows(features, np.full(len(known), PRIOR_WEIGHT))


def _build_curvature_rows(token_seconds: float) -> Rows:
    """A row for each bend of the curve; token: about what one costs, in seconds."""
    slopes = np.eye(NUM_FEATURES)[TOKENS]
    # Relative to what a token costs, so that the weight means the same on a fast and on a slow device.
    features = (slopes[:-1] - slopes[1:]) * CURVATURE_WEIGHT / token_seconds
    return Rows(features, np.zeros(len(features)))


def _stack_rows(*parts: Rows) -> Rows:
    return Rows(np.vstack([rows.features for rows in parts]), np.concatenate([rows.targets for rows in parts]))


def _guess_coefficients(observed: Sequence[Timing], prior: Prior) -> Vector:
    """From the fastest decoding and the fastest prefill."""
    tpots = [timing.tpot for timing in observed if timing.tpot]
    prefills = [timing.ttft / timing.input_tokens for timing in observed]
    guess = np.zeros(NUM_FEATURES)
    guess[BASE] = prior.base or 0.7 * float(np.min(tpots))
    # The fastest ones waited for nothing; a low quantile instead of the minimum, since single times can be wrong.
    guess[TOKENS] = float(np.quantile(prefills, 0.05))
    guess[EXPERTS] = 1.0 if prior.per_expert_token else 0.0
    guess[FRONTEND] = prior.frontend
    return guess


def _check_measurements(workload: Sequence[WorkloadRequest], observed: Sequence[Timing]) -> None:
    known = {request.id for request in workload}
    for timing in observed:
        if timing.id not in known:
            raise CalibrationError(f"request {timing.id!r} was observed, but is not in the workload")
        # Most often a mix of clocks or units in the log.
        if not timing.arrival_s < timing.first_token_s <= timing.last_token_s:
            raise CalibrationError(f"request {timing.id!r}: arrival, first and last token are not in this order")
    if len(observed) < MIN_REQUESTS or all(not timing.tpot for timing in observed):
        raise CalibrationError(
            f"at least {MIN_REQUESTS} requests are needed, some of them with two or more output tokens"
        )
