"""Rotary position embedding, as a product of complex numbers.

A head's numbers i and i + head_dim / 2 make up one complex number (`interleave` puts
them side by side); rotating it is one product. The formulas are transformers'
(`modeling_rope_utils`), in float32 as there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .array_types import Ints
from .llama_config import RopeConfig

Rotations = NDArray[np.complex64]


class Rope:
    """The rotations of all positions; the table grows with the longest position."""

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        base = (1.0 / np.float32(config.theta) ** exponents).astype(np.float32)
        match config.kind:
            case "default":
                self._frequencies = base
            case "linear":
                self._frequencies = (base / np.float32(config.factor)).astype(np.float32)
            case "llama3":
                # Scale the frequencies: long wavelengths by the factor, short ones not
                # at all, those between by interpolation.
                rotations = config.original_max_position_embeddings * base / (2 * np.pi)
                low = config.low_freq_factor
                high = config.high_freq_factor
                unscaled_share = np.clip((rotations - low) / (high - low), 0.0, 1.0)
                scaled = (1 - unscaled_share) * base / config.factor + unscaled_share * base
                self._frequencies = scaled.astype(np.float32)
        self._table = self._compute(0, 512)

    def get_rotations(self, positions: Ints) -> Rotations:
        """Return the rotations [n, 1, head_dim / 2] of positions [n], shared by all
        heads.
        """
        last = int(positions.max(initial=0))
        if last >= len(self._table):
            # Extend to a power of two, so that a sequence that grows token by token
            # rarely extends the table.
            extension = self._compute(len(self._table), 1 << (last + 1).bit_length())
            self._table = np.concatenate((self._table, extension))
        return self._table[positions, None]

    def _compute(self, start: int, stop: int) -> Rotations:
        # In float32 as in transformers, rounding included; only sine and cosine are
        # computed from wider numbers.
        angles = np.arange(start, stop, dtype=np.float32)[:, None] * self._frequencies
        return np.exp(1j * angles.astype(np.float64)).astype(np.complex64)


def compute_interleaved_order(head_dim: int) -> Ints:
    """Compute the order of a head's numbers that makes the two parts of each rotated
    pair adjacent.

    Queries and keys are permuted alike, so their dot products do not change.
    """
    return np.arange(head_dim).reshape(2, head_dim // 2).T.reshape(-1)
