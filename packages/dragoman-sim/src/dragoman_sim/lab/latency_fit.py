"""The search for the coefficients of a step's duration, by alternating simulation and
solving.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct

from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest

from ..engine.engine_core import EngineCore
from ..engine.latency import LatencyModel, TokenCost
from ..engine.profile import RankLayout
from ..engine.scheduler import SimulatedScheduler
from ..engine.scheduler_config import SimulatedSchedulerConfig
from .least_squares import Rows, Vector, solve
from .lock_step_replay import replay_in_lock_step
from .measured_windows import (
    BASE,
    CONTEXT,
    EXPERTS,
    FRONTEND,
    KNOTS,
    MIXED,
    NUM_FEATURES,
    PAIRS,
    TOKENS,
    MeasuredWindows,
)
from .prior import Prior
from .replay import replay
from .replay_result import ReplayResult
from .replica_router import ReplicaRouter

MIN_REQUESTS = 20
START_FACTORS = (0.1, 0.3, 1.0)
"""First guesses of a token's cost, as shares of the time per token of the fastest
prefill.
"""
HALF_STEP_ROUNDS = 6
LINE_SEARCH_ROUNDS = 8
"""Rounds that always go halfway to the solution, then rounds that only accept
improvements. Near saturation the former may oscillate; far from the optimum the latter
may get stuck.
"""
AVERAGED_TRIALS = 3
"""Number of best trials to average: requests jump between steps as the coefficients
change, so the best trial is partly luck.
"""
MAX_ERROR_RATIO = 1.5
"""Maximum error of that average relative to the best trial's; above it the trials are
probably in different minima.
"""
TOTAL_WEIGHT = 10.0
"""Weight of the rows of means; a single request's row has 1. Means are what is
reported, and a robust fit of single requests alone leaves them biased.
"""
PRIOR_WEIGHT = 1.0
"""Weight of a coefficient's relative deviation from its prior."""
CURVATURE_WEIGHT = 0.3
"""Weight of a bend in the cost curve, which decoding and prefill alone hardly
determine.
"""


class CalibrationError(ValueError):
    """The measurements cannot be fitted; the message gives the reason."""


class Fit(Struct, frozen=True):
    """A fitted latency model.

    latency: the fitted coefficients.
    frontend_seconds: seconds from the client to the engine's queue.
    error: the minimized error, see `MeasuredWindows.compute_error`; above 0.2 the fit
        is poor.
    """

    latency: LatencyModel
    frontend_seconds: float
    error: float


ONE_RANK = RankLayout()


def simulate(
    workload: Sequence[WorkloadRequest],
    config: SimulatedSchedulerConfig,
    latency: LatencyModel,
    frontend_seconds: float = 0.0,
    until: frozenset[str] | None = None,
    ranks: RankLayout = ONE_RANK,
) -> ReplayResult:
    """Replay the workload on one server without noise, whose ranks are balanced as by
    vLLM.

    until: stop when all of these requests are answered; None to answer all.
    """
    cores = [
        EngineCore(SimulatedScheduler(config), latency.compute_seconds) for _ in range(ranks.count)
    ]
    router = ReplicaRouter("least-loaded")
    if ranks.lock_step and ranks.count > 1:
        return replay_in_lock_step(
            workload,
            cores,
            ranks.count,
            router=router,
            frontend_seconds=frontend_seconds,
            until=until,
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
    """Fit coefficients with which the simulated requests take as long as the observed
    ones.

    workload: all requests to the server, since the observed ones shared it with them.
        Their measured times are not used.
    observed: measured times of some of them.
    config: the server's real settings, per rank.
    prior: expected coefficients.
    excluded_columns: columns of the linear system that stay 0, for ablation.
    ranks: data-parallel ranks of the server.

    Raises:
        CalibrationError: the measurements cannot be fitted.
        RequestError: a request can never run with these settings.
    """
    ids = {request.id for request in workload}
    for timing in observed:
        if timing.id not in ids:
            raise CalibrationError(
                f"request {timing.id!r} was observed, but is not in the workload"
            )
        # Usually the log mixes clocks or units.
        if not timing.arrival_s < timing.first_token_s <= timing.last_token_s:
            raise CalibrationError(
                f"request {timing.id!r}: arrival, first and last token are not in this order"
            )
    if len(observed) < MIN_REQUESTS or all(not timing.tpot for timing in observed):
        raise CalibrationError(
            f"at least {MIN_REQUESTS} requests are needed, some of them with two or more output "
            f"tokens"
        )
    return _Search(workload, observed, config, prior, excluded_columns, ranks).run()


class _Trial(Struct, frozen=True):
    coefficients: Vector
    windows: MeasuredWindows
    error: float


class _Search:
    """The search: Gauss-Newton steps, each with its own simulation."""

    def __init__(
        self,
        workload: Sequence[WorkloadRequest],
        observed: Sequence[Timing],
        config: SimulatedSchedulerConfig,
        prior: Prior,
        excluded_columns: Collection[int],
        ranks: RankLayout,
    ) -> None:
        self._workload = workload
        self._observed = observed
        self._config = config
        self._ranks = ranks
        self._prior = prior
        self._ids = frozenset(timing.id for timing in observed)
        self._column_mask = np.array(
            [column not in excluded_columns for column in range(NUM_FEATURES)], dtype=np.float64
        )
        # Only for models with experts: it did not improve the fits of the measured
        # dense models.
        self._column_mask[MIXED] *= bool(prior.per_expert_token)
        # The first guess comes from the fastest decoding and the fastest prefill.
        tpots = [timing.tpot for timing in observed if timing.tpot]
        prefills = [timing.ttft / timing.input_tokens for timing in observed]
        guess = np.zeros(NUM_FEATURES)
        guess[BASE] = prior.base or 0.7 * float(np.min(tpots))
        # The fastest prefills did not queue; a low quantile, not the minimum, since
        # single times can be wrong.
        guess[TOKENS] = float(np.quantile(prefills, 0.05))
        guess[EXPERTS] = 1.0 if prior.per_expert_token else 0.0
        guess[FRONTEND] = prior.frontend
        self._guess = guess * self._column_mask
        # A row for each expected value: a deviation of 100 % costs PRIOR_WEIGHT
        # squared.
        expected: Mapping[int, float | None] = {
            BASE: prior.base,
            CONTEXT: prior.per_context_token,
            EXPERTS: 1.0 if prior.per_expert_token else None,
            FRONTEND: prior.frontend,
        }
        expectations = {column: value for column, value in expected.items() if value}
        features = np.zeros((len(expectations), NUM_FEATURES))
        for row, (column, value) in enumerate(expectations.items()):
            features[row, column] = PRIOR_WEIGHT / value
        prior_rows = Rows(features, np.full(len(expectations), PRIOR_WEIGHT))
        # A row for each bend of the curve, relative to the cost of a token, so that the
        # weight does not depend on the speed of the device.
        slopes = np.eye(NUM_FEATURES)[TOKENS]
        bends = (slopes[:-1] - slopes[1:]) * CURVATURE_WEIGHT / float(guess[TOKENS][-1])
        self._regularization = _stack_rows(prior_rows, Rows(bends, np.zeros(len(bends))))
        self._trials: list[_Trial] = []

    def run(self) -> Fit:
        for factor in START_FACTORS:
            start = self._guess.copy()
            # The error has local minima, since a different step time changes which
            # requests share a step.
            start[TOKENS] *= factor
            self._run_trial(start)
        trial = self._find_best_trial()
        for _ in range(HALF_STEP_ROUNDS):
            trial = self._run_trial((trial.coefficients + self._solve(trial)) / 2)
        best = self._find_best_trial()
        stride = 1.0
        solved = self._solve(best)
        for _ in range(LINE_SEARCH_ROUNDS):
            trial = self._run_trial((1 - stride) * best.coefficients + stride * solved)
            if trial.error < best.error:
                best = trial
                stride = min(1.0, 2 * stride)
                solved = self._solve(best)
            else:
                stride /= 2
        best_trials = sorted(self._trials, key=lambda trial: trial.error)[:AVERAGED_TRIALS]
        # The best trials differ by chance where the data does not determine them; their
        # mean is more stable.
        averaged = self._run_trial(np.mean([trial.coefficients for trial in best_trials], axis=0))
        final = (
            averaged if averaged.error < MAX_ERROR_RATIO * best_trials[0].error else best_trials[0]
        )
        return Fit(
            self._build_latency_model(final.coefficients),
            float(final.coefficients[FRONTEND]),
            final.error,
        )

    def _find_best_trial(self) -> _Trial:
        return min(self._trials, key=lambda trial: trial.error)

    def _run_trial(self, coefficients: Vector) -> _Trial:
        frontend = float(coefficients[FRONTEND])
        latency = self._build_latency_model(coefficients)
        result = simulate(self._workload, self._config, latency, frontend, self._ids, self._ranks)
        windows = MeasuredWindows(result, self._observed, frontend, self._prior)
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
            per_expert_token=tuple(
                TokenCost(cost.beyond, scale * cost.seconds)
                for cost in self._prior.per_expert_token
            ),
            mixed_base=scale * self._prior.mixed_base,
        )

    def _solve(self, trial: _Trial) -> Vector:
        totals = trial.windows.build_mean_rows()
        weighted = Rows(totals.features * TOTAL_WEIGHT, totals.targets * TOTAL_WEIGHT)
        requests = trial.windows.build_request_rows()
        regularization = _stack_rows(weighted, self._regularization)
        try:
            return solve(
                Rows(requests.features * self._column_mask, requests.targets),
                Rows(regularization.features * self._column_mask, regularization.targets),
            )
        except ValueError as error:
            raise CalibrationError(f"{error}: are arrival and token times on one clock?") from None


def _stack_rows(*parts: Rows) -> Rows:
    return Rows(
        np.vstack([rows.features for rows in parts]),
        np.concatenate([rows.targets for rows in parts]),
    )
