"""Matrix products whose rows are bitwise independent of the number of rows in the
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


ROWS = 8
"""Batches are padded to a multiple of this."""


CANDIDATES = (512, 128, 32, 8, 4, 2, 1)
"""Block sizes to try, in rows."""

_LIMITS = (32, 128)
"""Limits of the blocks that are tried, by the rows of the largest batch so far."""


_MAX_ANY_COUNT = 128
"""Up to so many rows, a call may have any number of them that is a multiple of the unit;
above, it has the block's. A trial of every number up to 512 would take half a second.
"""


_MAX_TRIAL_WORK = 1 << 33
"""Limit of multiply-adds in a trial: large models settle for a smaller block."""


def multiply(rows: Floats, matrix: Floats, block: int) -> Floats:
    """Compute `rows @ matrix` over the last two axes, in calls of at most `block` rows.

    The number of rows is a multiple of the `unit` for which the block was found.
    Leading axes broadcast.
    """
    count, inner = rows.shape[-2:]
    if count <= min(block, _MAX_ANY_COUNT):
        return rows @ matrix
    outer = matrix.shape[-1]
    stacks = np.broadcast_shapes(rows.shape[:-2], matrix.shape[:-2])
    product = np.empty((*stacks, count, outer), np.float32)
    start = 0
    for size in (block, min(block, _MAX_ANY_COUNT)):
        stop = start + (count - start) // size * size
        if stop == start:
            continue
        blocks = rows[..., start:stop, :].reshape(*rows.shape[:-2], -1, size, inner)
        results = product[..., start:stop, :].reshape(*stacks, -1, size, outer)
        np.matmul(blocks, matrix[..., None, :, :], out=results)
        start = stop
    if start < count:
        np.matmul(rows[..., start:, :], matrix, out=product[..., start:, :])
    return product


class BlockSizes:
    """Block sizes for row-independent products, found by trial. Every shape is tried
    once for each limit.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, ...], int] = {}

    def find_block_size(self, matrix: Floats, unit: int, limit: int = CANDIDATES[0]) -> int:
        """Find the block size for matrices of this shape and layout, and row counts
        that are multiples of unit.

        limit: see `find_largest_block`.
        """
        key = (*matrix.shape, *matrix.strides, unit, limit)
        if key not in self._sizes:
            self._sizes[key] = find_largest_block(
                lambda rows: rows @ matrix, matrix.shape[0], matrix.shape[1], unit, limit
            )
        return self._sizes[key]


@cache
def share_block_sizes() -> BlockSizes:
    """The block sizes of this process: a product's kernel depends on its shape, not on
    the model.
    """
    return BlockSizes()


class Linear:
    """rows @ weight + bias for multiples of ROWS rows; a result row does not depend on
    the number of rows.
    """

    def __init__(self, weight: Floats, block_sizes: BlockSizes, bias: Floats | None = None) -> None:
        """weight: [inner, outer]."""
        # BLAS uses other kernels for a transposed layout, which would need a block size
        # of their own.
        self._weight = np.ascontiguousarray(weight)
        self._bias = bias
        self._block_sizes = block_sizes
        self._limit = 0
        self._block = 0

    def __call__(self, rows: Floats) -> Floats:
        count = rows.shape[-2]
        if count > self._limit < CANDIDATES[0]:
            # Trials of large blocks take most of the time to load a small model, and
            # short prompts need none. A block of any limit gives the same bits.
            limit = next((limit for limit in _LIMITS if count <= limit), CANDIDATES[0])
            self._block = self._block_sizes.find_block_size(self._weight, ROWS, limit)
            self._limit = limit
        product = multiply(rows, self._weight, self._block)
        if self._bias is not None:
            product += self._bias
        return product


def find_largest_block(
    product: Callable[[Floats], Floats],
    inner: int,
    outer: int,
    unit: int,
    limit: int = CANDIDATES[0],
) -> int:
    """Find the largest candidate for which `product` computes all rows alike in every
    call that `multiply` may make.

    product: maps rows of `inner` numbers to `outer` numbers, by a fixed matrix. It is
        tried on equal rows, which must give equal results: a different order of
        summation shows in some of the columns.
    limit: the largest candidate to try.
    """
    # A fixed seed, so that every start finds the same block and computes the same bits.
    row: Floats = np.random.default_rng(0).standard_normal((1, inner), np.float32)
    for block in CANDIDATES[CANDIDATES.index(limit) : -1]:
        counts = [*range(unit, min(block, _MAX_ANY_COUNT) + 1, unit), block]
        if block > unit and sum(counts) * inner * outer > _MAX_TRIAL_WORK:
            continue
        expected = product(np.repeat(row, counts[0], axis=0))[:1]
        if all(
            bool((product(np.repeat(row, count, axis=0)) == expected).all()) for count in counts
        ):
            return block
    return CANDIDATES[-1]


def round_up(count: int, unit: int) -> int:
    """Return the next multiple of unit."""
    return -(-count // unit) * unit
