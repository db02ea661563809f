"""The linear system: what the simulated steps compute in the windows of the measured
requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dragoman_check.load.request_timing import Timing

from ..engine.latency import integrate_curve
from .least_squares import Matrix, Rows, Vector
from .prior import Prior
from .replay_result import ReplayResult, StepLog

KNOTS = (0, 64, 256)
"""Tokens per step at which the cost curve may bend: decoding alone, large decode
batches, prompts.
"""


BASE = 0


TOKENS = slice(1, 1 + len(KNOTS))


CONTEXT, PAIRS, EXPERTS, FRONTEND, MIXED, NUM_FEATURES = range(TOKENS.stop, TOKENS.stop + 6)
"""Columns of the linear system: the coefficients of LatencyModel (EXPERTS is a factor
on the experts' expected curve and mixed_base), and FRONTEND, the seconds from the
client to the queue.
"""


class MeasuredWindows:
    """The windows of measured requests in a replay: the work of the simulated steps,
    and the measured durations.

    observed: measured timings; the replay must have answered all of their ids.
    frontend_seconds: seconds from the client to the queue, in the replay.
    prior: its cost per token of shared experts, and of steps with a prompt.
    """

    def __init__(
        self,
        result: ReplayResult,
        observed: Sequence[Timing],
        frontend_seconds: float,
        prior: Prior = Prior(),  # noqa: B008 - immutable
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
            work = _CumulativeWork(steps, prior)
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

    def __init__(self, steps: StepLog, prior: Prior) -> None:
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
        if curve := prior.per_expert_token:
            columns[EXPERTS] = np.array(
                [
                    integrate_curve(curve, tokens) + (prior.mixed_base if pairs else 0.0)
                    for tokens, pairs in zip(steps.expert_tokens, steps.prefill_pairs, strict=True)
                ]
            )
        self._boundaries = np.column_stack([steps.begins, steps.ends]).ravel()
        self._sums: list[Vector] = []
        for column in columns:
            # The sum before and after each step, to match the boundaries.
            total = np.cumsum(column)
            self._sums.append(np.column_stack([total - column, total]).ravel())

    def interpolate(self, times: Sequence[float]) -> Matrix:
        return np.column_stack([np.interp(times, self._boundaries, sums) for sums in self._sums])
