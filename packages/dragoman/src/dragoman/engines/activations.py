"""Activation functions of neural networks, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_PIECE = 1 << 15
"""Numbers that are computed at once, so that all arrays of GELU stay in the cache."""


def compute_sigmoid(number: float) -> float:
    # Neither form overflows. The second keeps the digits of small results, which rank
    # irrelevant documents.
    return 1 / (1 + exp(-number)) if number >= 0 else exp(number) / (1 + exp(number))


def compute_relu(rows: Floats) -> Floats:
    return np.maximum(rows, 0)


def _compute_sigmoids(rows: Floats) -> Floats:
    return np.array([compute_sigmoid(float(number)) for number in rows.flat], np.float32).reshape(
        rows.shape
    )


def _compute_silu(rows: Floats) -> Floats:
    return rows * _compute_sigmoids(rows)


def _compute_identity(rows: Floats) -> Floats:
    return rows


def _compute_tanh(rows: Floats) -> Floats:
    return np.tanh(rows)


def compute_gelu(rows: Floats) -> Floats:
    """GELU: x * Phi(x), where Phi is the cumulative distribution function of the normal
        distribution.

    Phi is computed from erf, which is approximated by formula 7.1.26 of Abramowitz and
    Stegun, Handbook of Mathematical Functions; the absolute error of Phi is below 2e-7.
    """
    numbers = np.ascontiguousarray(rows).reshape(-1)
    results = np.empty_like(numbers)
    for start in range(0, len(numbers), _PIECE):
        piece = slice(start, start + _PIECE)
        _fill_gelu(numbers[piece], results[piece])
    return results.reshape(rows.shape)


def _fill_gelu(numbers: Floats, results: Floats) -> None:
    scaled = np.abs(numbers)
    scaled *= np.float32(0.5**0.5)
    t = scaled * np.float32(0.3275911)
    t += np.float32(1)
    np.divide(np.float32(1), t, out=t)
    series = t * np.float32(1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736):
        series += np.float32(coefficient)
        series *= t
    series += np.float32(0.254829592)
    series *= t
    scaled *= scaled
    np.negative(scaled, out=scaled)
    np.exp(scaled, out=scaled)
    series *= scaled
    series *= np.float32(0.5)
    np.subtract(np.float32(1), series, out=series, where=numbers > 0)
    np.multiply(numbers, series, out=results)


ACTIVATION_FUNCTIONS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(
    {
        "Identity": _compute_identity,
        "Sigmoid": _compute_sigmoids,
        "Tanh": _compute_tanh,
        "ReLU": compute_relu,
        "GELU": compute_gelu,
        "SiLU": _compute_silu,
    }
)
"""By their names in torch: `sentence_modules.ACTIVATIONS`."""
