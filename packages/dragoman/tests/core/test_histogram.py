"""A histogram in coarser buckets, and the sum of several, count as one that observes all."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.histogram import Histogram

FINE = (0.1, 0.25, 0.5, 1.0, 5.0)
COARSE = (0.25, 1.0)
VALUES = st.lists(st.floats(0, 10) | st.sampled_from(FINE))


def observe(bounds: Sequence[float], values: Sequence[float]) -> Histogram:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram


@given(VALUES)
def test_histogram_coarsen_counts_like_coarse_one(values: list[float]):
    coarse = observe(FINE, values).coarsen(COARSE)
    expected = observe(COARSE, values)
    assert (coarse.bounds, coarse.counts, coarse.sum) == (COARSE, expected.counts, expected.sum)


@given(VALUES, VALUES)
def test_histogram_add_counts_like_one(first: list[float], second: list[float]):
    total = observe(FINE, first)
    other = observe(FINE, second)
    expected_sum = total.sum + other.sum
    total.add(other)
    assert total.counts == observe(FINE, first + second).counts
    assert total.sum == expected_sum
