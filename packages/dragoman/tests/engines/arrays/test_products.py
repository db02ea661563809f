"""Matrix products whose rows do not depend on their neighbors, whatever BLAS does."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman.engines.activations import compute_gelu, compute_sigmoid
from dragoman.engines.batch_invariant_matmul import (
    CANDIDATES,
    BlockSizes,
    Linear,
    find_largest_block,
    multiply,
)

Floats = NDArray[np.float32]

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(
    ("inner", "outer"), [(32, 48), (128, 256), (128, 704), (352, 128), (688, 256)]
)
def test_multiply_row_is_independent_of_other_rows(inner: int, outer: int) -> None:
    matrix = RNG.standard_normal((inner, outer), np.float32)
    block = BlockSizes().find_block_size(matrix, 8)
    rows = RNG.standard_normal((1184, inner), np.float32)
    together = multiply(rows, matrix, block)
    for start, stop in [(0, 8), (8, 16), (16, 40), (40, 136), (0, 152), (24, 160), (8, 1176)]:
        assert np.array_equal(multiply(rows[start:stop], matrix, block), together[start:stop])
    shuffled = RNG.permutation(len(rows))
    assert np.array_equal(multiply(rows[shuffled], matrix, block), together[shuffled])
    assert np.allclose(together, rows.astype(np.float64) @ matrix, atol=1e-3)


@pytest.mark.parametrize("block", CANDIDATES)
def test_multiply_is_exact_for_blocks_and_stacks(block: int) -> None:
    rows = RNG.integers(-4, 5, (2, 1, 664, 6)).astype(np.float32)
    matrix = RNG.integers(-4, 5, (2, 3, 6, 5)).astype(np.float32)
    assert np.array_equal(multiply(rows, matrix, block), rows @ matrix)


def test_find_largest_block_detects_position_dependence() -> None:
    def as_on_avx2(rows: Floats) -> Floats:
        """A product whose rows from the 12th on have a rounding error."""
        product = rows * np.float32(3)
        product[12:] = np.nextafter(product[12:], np.float32(np.inf))
        return product

    assert find_largest_block(as_on_avx2, 16, 16, 8) == 8
    assert find_largest_block(as_on_avx2, 16, 16, 4) == 8


def test_find_largest_block_detects_row_count_dependence() -> None:
    def small_is_different(rows: Floats) -> Floats:
        product = rows * np.float32(3)
        return product if len(rows) > 8 else np.nextafter(product, np.float32(np.inf))

    assert find_largest_block(small_is_different, 16, 16, 8) == 8


def test_find_largest_block_falls_back_to_single_rows() -> None:
    def never_twice_the_same(rows: Floats) -> Floats:
        return rows + np.arange(len(rows), dtype=np.float32)[:, None]

    assert find_largest_block(never_twice_the_same, 16, 16, 8) == 1


def test_find_largest_block_skips_slow_trial() -> None:
    counts: list[int] = []

    def product(rows: Floats) -> Floats:
        counts.append(len(rows))
        return rows

    assert find_largest_block(product, 16, 1 << 22, 8) == 32
    assert find_largest_block(product, 16, 1 << 40, 8) == 8
    assert max(counts) == 32


def test_compute_gelu_matches_error_function() -> None:
    numbers = np.linspace(-12, 12, 70_001, dtype=np.float32)
    expected = [number * (1 + erf(number / 2**0.5)) / 2 for number in numbers.tolist()]
    assert np.allclose(compute_gelu(numbers), expected, rtol=3e-7, atol=4e-7)


def test_compute_sigmoid_avoids_overflow_and_underflow():
    assert [compute_sigmoid(number) for number in (-800.0, 0.0, 800.0)] == [0, 0.5, 1]
    assert 0 < compute_sigmoid(-41.0) < compute_sigmoid(-40.0) < 1e-17


class CountingBlockSizes(BlockSizes):
    """Records the limits of the trials."""

    def __init__(self) -> None:
        super().__init__()
        self.limits: list[int] = []

    def find_block_size(self, matrix: Floats, unit: int, limit: int = CANDIDATES[0]) -> int:
        self.limits.append(limit)
        return super().find_block_size(matrix, unit, limit)


def test_linear_tries_large_blocks_for_large_batches_only() -> None:
    sizes = CountingBlockSizes()
    linear = Linear(RNG.standard_normal((128, 256), np.float32), sizes)
    assert sizes.limits == []
    rows = RNG.standard_normal((160, 128), np.float32)
    few = [linear(rows[:count]) for count in (8, 32, 16)]
    assert sizes.limits == [32]
    together = linear(rows)
    linear(rows[:8])
    linear(rows)
    assert sizes.limits == [32, CANDIDATES[0]]
    for product in few:
        assert np.array_equal(product, together[: len(product)])
