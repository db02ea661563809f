"""What the simulated steps compute while a request waits for its first token, and while it has the others.

Turns a replay and the measured times of the same requests into a linear system. Knows nothing of how it is solved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .least_squares import Matrix, Rows, Vector
from .replay import Replayed, StepLog
from .timing import Timing

KNOTS = (0, 64, 256)
"""Where the curve of the cost of a step's tokens may bend: decoding alone, many decoding, prompts."""
BASE = 0
TOKENS = slice(1, 1 + len(KNOTS))
CONTEXT, PAIRS, FRONTEND, NUM_FEATURES = range(TOKENS.stop, TOKENS.stop + 4)
"""Columns of the linear system: the coefficients of LatencyModel, and the seconds from the client to the queue."""


class Windows:
    """observed: with the ids of requests that the replay has answered."""

    def __init__(self, replayed: Replayed, observed: Sequence[Timing], frontend_seconds: float) -> None:
        simulated = {timing.id: timing for timing in replayed.timings}
        pairs = [(simulated[timing.id], timing) for timing in observed]
        work = _Work(replayed.steps[0])
        arrived = work.until([ours.arrival_s + frontend_seconds for ours, _ in pairs])
        first = work.until([ours.first_token_s for ours, _ in pairs])
        last = work.until([ours.last_token_s for ours, _ in pairs])
        self._waiting = first - arrived
        self._waiting[:, FRONTEND] = 1.0
        self._decoding = last - first
        self._ttft = np.array([theirs.ttft for _, theirs in pairs])
        self._decode = np.array([theirs.last_token_s - theirs.first_token_s for _, theirs in pairs])
        self._gaps = np.array([theirs.output_tokens - 1 for _, theirs in pairs])

    def singles(self) -> Rows:
        """A row a window: what is computed in it, over how long it took. Every target is 1."""
        several = self._decode > 0
        features = np.vstack(
            [self._waiting / self._ttft[:, None], self._decoding[several] / self._decode[several, None]]
        )
        return Rows(features, np.ones(len(features)))

    def totals(self) -> Rows:
        """A row a mean: time to the first token, latency, time per output token."""
        several = self._gaps > 0
        gaps = self._gaps[several]
        windows = [
            (self._waiting.sum(axis=0), self._ttft.sum()),
            ((self._waiting + self._decoding).sum(axis=0), (self._ttft + self._decode).sum()),
            ((self._decoding[several] / gaps[:, None]).sum(axis=0), (self._decode[several] / gaps).sum()),
        ]
        return Rows(np.array([work / took for work, took in windows]), np.ones(len(windows)))


class _Work:
    """Everything computed from the beginning up to a moment, a column a feature; linear within a step."""

    def __init__(self, steps: StepLog) -> None:
        self._moments = np.column_stack([steps.begins, steps.ends]).ravel()
        self._sums = [_sums(column) for column in _columns(steps)]

    def until(self, times: Sequence[float]) -> Matrix:
        return np.column_stack([np.interp(times, self._moments, sums) for sums in self._sums])


def _columns(steps: StepLog) -> list[Vector]:
    tokens = np.array(steps.tokens)
    ends = (*KNOTS[1:], np.inf)
    columns = [np.zeros(len(tokens)) for _ in range(NUM_FEATURES)]
    columns[BASE] = np.ones(len(tokens))
    columns[TOKENS] = [np.clip(tokens, begin, end) - begin for begin, end in zip(KNOTS, ends, strict=True)]
    columns[CONTEXT] = np.array(steps.context)
    columns[PAIRS] = np.array(steps.prefill_pairs)
    return columns


def _sums(column: Vector) -> Vector:
    """Before and after each step."""
    after = np.cumsum(column)
    return np.column_stack([after - column, after]).ravel()
