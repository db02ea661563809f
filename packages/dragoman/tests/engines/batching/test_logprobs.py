"""Log-probabilities, ranks and alternatives."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman.engines.batching.sampler import build_logprob, log_softmax

ROWS = st.lists(st.sampled_from([-3.0, -0.5, 0.0, 0.25, 2.0, 7.5]), min_size=2, max_size=12)


@given(ROWS, st.data())
def test_build_logprob_matches_definition(logits: list[float], data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    count = data.draw(st.integers(0, len(logits) + 3))
    row = log_softmax(np.array([logits], np.float32))[0]
    scored = build_logprob(row, token, count)
    total = math.log(math.fsum(math.exp(value) for value in logits))
    assert math.isclose(scored.logprob, logits[token] - total, abs_tol=1e-12)
    assert scored.rank == 1 + sum(value > logits[token] for value in logits)
    best = sorted(range(len(logits)), key=lambda id: (-logits[id], id))[:count]
    assert [id for id, _ in scored.top] == best
    assert all(logprob == scored.logprob for id, logprob in scored.top if id == token)


def test_log_softmax_huge_logits_stay_finite() -> None:
    row = log_softmax(np.array([[1e30, -1e30, 0.0]], np.float32))[0]
    assert row[0] == 0.0
    assert np.isfinite(row).all()


def test_log_softmax_row_is_independent_of_batch() -> None:
    logits = np.random.default_rng(0).standard_normal((33, 2048), np.float32) * 5
    together = log_softmax(logits)
    for row in range(33):
        assert np.array_equal(log_softmax(logits[row : row + 1])[0], together[row])
