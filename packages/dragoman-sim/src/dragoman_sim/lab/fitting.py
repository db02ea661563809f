"""Fits the coefficients of a step's duration to measured requests, by alternating
simulation and solving.

A log states when requests began and ended, not what each step computed. The fit
therefore simulates the workload with the current coefficients, and sums the work of the
simulated steps in two windows of each request: from its arrival to its first token, and
from its first to its last token. The measured durations of these windows are linear in
the coefficients. Solving (non-negative, relative errors, robust to outliers) gives new
coefficients for the next simulation. The observed timings must not include the held-out
part of the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..engine.config import SimulatedSchedulerConfig
from ..engine.engine_core import EngineCore
from ..engine.latency import LatencyModel, TokenCost, integrate_curve
from ..engine.profile import Prior, RankLayout
from ..engine.scheduler import SimulatedScheduler
from .replay import ReplayResult, StepLog, replay, replay_in_lock_step
from .routing import ReplicaRouter
from dragoman_check.load.workload import Timing, WorkloadRequest

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

# Non-negative least squares, robust to outliers.

OUTLIER_RESIDUAL = 0.03
"""Relative residual beyond which the loss grows linearly instead of quadratically."""
REWEIGHTINGS = 20
"""Iterations of the reweighted least squares."""
RIDGE = 1e-12
"""Ridge term that makes collinear columns solvable; negligible against the
measurements.
"""


class Rows(NamedTuple):
    """An overdetermined linear system: features @ coefficients should equal targets."""

    features: Matrix
    targets: Vector


def solve(weighted_rows: Rows, fixed_rows: Rows) -> Vector:
    """Solve for non-negative coefficients, of which the first is positive.

    Outliers among the weighted rows are down-weighted iteratively, towards least
    absolute deviations; fixed rows are not.

    Raises:
        ValueError: no such coefficients explain the targets.
    """
    weights = np.ones(len(weighted_rows.targets))
    coefficients = np.zeros(weighted_rows.features.shape[1])
    for _ in range(REWEIGHTINGS):
        features = np.vstack([weighted_rows.features * weights[:, None], fixed_rows.features])
        coefficients = solve_non_negative(
            Rows(features, np.concatenate([weighted_rows.targets * weights, fixed_rows.targets]))
        )
        residuals = weighted_rows.features @ coefficients - weighted_rows.targets
        # An outlier (a retry, a pause of the client) must not dominate the fit.
        weights = (1 + (residuals / OUTLIER_RESIDUAL) ** 2) ** -0.25
    return coefficients


def solve_non_negative(rows: Rows) -> Vector:
    """Return the best non-negative coefficients, of which the first is positive, by
    trying every set of zeros.

    Raises:
        ValueError: no such coefficients explain the targets.
    """
    scale = np.linalg.norm(rows.features, axis=0)
    scale[scale == 0] = 1.0
    # Seconds per step and per token differ by orders of magnitude; unscaled, the ridge
    # would affect only one of them.
    scaled = rows.features / scale
    gram = scaled.T @ scaled + RIDGE * np.eye(len(scale))
    moments = scaled.T @ rows.targets
    best = np.zeros(len(scale))
    min_error = 0.0
    # Solving 2**k small systems is exact, and for about ten columns faster than an
    # iterative solver.
    for selected in product((False, True), repeat=len(scale) - 1):
        free = np.flatnonzero((True, *selected))
        solution = np.asarray(
            np.linalg.solve(gram[np.ix_(free, free)], moments[free]), dtype=np.float64
        )
        error = -float(moments[free] @ solution)  # the sum of squares, less that of the targets
        if error < min_error and solution[0] > 0 and (solution >= 0).all():
            best = np.zeros(len(scale))
            min_error = error
            best[free] = solution
    if not best[0] > 0:
        raise ValueError("no coefficients above zero explain the measurements")
    return best / scale


# The linear system: what the simulated steps compute in the windows of the measured
# requests.

KNOTS = (0, 64, 256)
"""Tokens per step at which the cost curve may bend: decoding alone, large decode
batches, prompts.
"""
BASE = 0
TOKENS = slice(1, 1 + len(KNOTS))
CONTEXT, PAIRS, EXPERTS, FRONTEND, MIXED, NUM_FEATURES = range(TOKENS.stop, TOKENS.stop + 6)
"""Columns of the linear system: the coefficients of LatencyModel (EXPERTS is a factor
on the experts' expected curve), and FRONTEND, the seconds from the client to the queue.
"""


class MeasuredWindows:
    """The windows of measured requests in a replay: the work of the simulated steps,
    and the measured durations.

    observed: measured timings; the replay must have answered all of their ids.
    frontend_seconds: seconds from the client to the queue, in the replay.
    expert_curve: expected cost per token of shared experts.
    """

    def __init__(
        self,
        result: ReplayResult,
        observed: Sequence[Timing],
        frontend_seconds: float,
        expert_curve: tuple[TokenCost, ...] = (),
    ) -> None:
        simulated = {timing.id: timing for timing in result.timings}
        matched = [simulated[timing.id] for timing in observed]
        self._waiting = np.zeros((len(matched), NUM_FEATURES))
        self._decoding = np.zeros((len(matched), NUM_FEATURES))
        for replica, steps in enumerate(result.steps):
            served = [index for index, timing in enumerate(matched) if timing.replica == replica]
            if not served:
                continue
            # The work of a window is a difference of two cumulative sums, however many
            # steps it spans.
            work = _CumulativeWork(steps, expert_curve)
            first = work.interpolate([matched[index].first_token_s for index in served])
            begin = work.interpolate(
                [matched[index].arrival_s + frontend_seconds for index in served]
            )
            self._waiting[served] = first - begin
            self._decoding[served] = (
                work.interpolate([matched[index].last_token_s for index in served]) - first
            )
        self._waiting[:, FRONTEND] = 1.0
        self._gaps = np.array([timing.output_tokens - 1 for timing in observed])
        self._ttft, self._decode = _compute_durations(observed)
        self._simulated_ttft, self._simulated_decode = _compute_durations(matched)

    def build_request_rows(self) -> Rows:
        """Build a row per window: its computed work divided by its measured duration.
        Every target is 1.
        """
        # A response of one token has no time per output token.
        has_decode = self._decode > 0
        features = np.vstack(
            [
                self._waiting / self._ttft[:, None],
                self._decoding[has_decode] / self._decode[has_decode, None],
            ]
        )
        return Rows(features, np.ones(len(features)))

    def build_mean_rows(self) -> Rows:
        """Build a row per mean over all requests: time to first token, latency, and
        time per output token.
        """
        has_decode = self._gaps > 0
        gaps = self._gaps[has_decode]
        windows = [
            (self._waiting.sum(axis=0), self._ttft.sum()),
            ((self._waiting + self._decoding).sum(axis=0), (self._ttft + self._decode).sum()),
            (
                (self._decoding[has_decode] / gaps[:, None]).sum(axis=0),
                (self._decode[has_decode] / gaps).sum(),
            ),
        ]
        return Rows(np.array([work / seconds for work, seconds in windows]), np.ones(len(windows)))

    def compute_error(self) -> float:
        """Compute the error that the search minimizes.

        It is the mean deviation of single requests plus that of the means, as absolute
        logarithms of ratios, each capped at 1. If the median request is 3 % off, it is
        about 0.05.
        """
        has_decode = (self._decode > 0) & (self._simulated_decode > 0)
        ttft = np.abs(np.log(self._simulated_ttft / self._ttft))
        decode = np.abs(np.log(self._simulated_decode[has_decode] / self._decode[has_decode]))
        single = (np.minimum(ttft, 1.0).mean() + np.minimum(decode, 1.0).mean()) / 2
        means = [
            self._simulated_ttft.mean() / self._ttft.mean(),
            (self._simulated_ttft + self._simulated_decode).mean()
            / (self._ttft + self._decode).mean(),
            self._simulated_decode.mean() / self._decode.mean(),
        ]
        return float(single + np.minimum(np.abs(np.log(means)), 1.0).mean())


def _compute_durations(timings: Sequence[Timing]) -> tuple[Vector, Vector]:
    """Return the seconds to the first token, and from the first to the last token."""
    ttft = np.array([timing.ttft for timing in timings])
    return ttft, np.array([timing.latency for timing in timings]) - ttft


class _CumulativeWork:
    """Cumulative work by time, one column per feature; linear within a step."""

    def __init__(self, steps: StepLog, expert_curve: tuple[TokenCost, ...]) -> None:
        tokens = np.array(steps.tokens)
        curve_ends = (*KNOTS[1:], np.inf)
        columns = [np.zeros(len(tokens)) for _ in range(NUM_FEATURES)]
        columns[BASE] = np.ones(len(tokens))
        columns[TOKENS] = [
            np.clip(tokens, begin, end) - begin
            for begin, end in zip(KNOTS, curve_ends, strict=True)
        ]
        columns[CONTEXT] = np.array(steps.context)
        columns[PAIRS] = np.array(steps.prefill_pairs)
        columns[MIXED] = np.array(steps.sequences) * (columns[PAIRS] > 0)
        if expert_curve:
            columns[EXPERTS] = np.array(
                [integrate_curve(expert_curve, tokens) for tokens in steps.expert_tokens]
            )
        self._boundaries = np.column_stack([steps.begins, steps.ends]).ravel()
        self._sums: list[Vector] = []
        for column in columns:
            # The sum before and after each step, to match the boundaries.
            total = np.cumsum(column)
            self._sums.append(np.column_stack([total - column, total]).ravel())

    def interpolate(self, times: Sequence[float]) -> Matrix:
        return np.column_stack([np.interp(times, self._boundaries, sums) for sums in self._sums])


# The search for the coefficients.

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
        self._expert_curve = prior.per_expert_token
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
            per_expert_token=tuple(
                TokenCost(cost.beyond, scale * cost.seconds) for cost in self._expert_curve
            ),
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
