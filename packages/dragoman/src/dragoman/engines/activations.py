"""Activation functions of neural networks, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def _build_constant(number: float) -> Floats:
    return np.array(number, np.float32)


_PIECE = 1 << 15
"""Numbers that are computed at once, so that all arrays of GELU stay in the cache."""
# Arrays without axes: numpy converts every other scalar in every call.
_ZERO, _ONE, _MINUS_HALF = map(_build_constant, (0, 1, -0.5))
_T_SCALE = _build_constant(0.3275911 * 0.5**0.5)
_SERIES = tuple(
    _build_constant(coefficient / 2)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)


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
    size = min(len(numbers), _PIECE)
    buffers = np.empty((2, size), np.float32)
    for start in range(0, len(numbers), _PIECE):
        piece = numbers[start : start + _PIECE]
        _fill_gelu(piece, results[start : start + _PIECE], *buffers[:, : len(piece)])
    return results.reshape(rows.shape)


def _fill_gelu(numbers: Floats, series: Floats, distance: Floats, t: Floats) -> None:
    """Write GELU to series: max(x, 0) - |x| * Phi(-|x|). distance, t: are overwritten."""
    np.abs(numbers, out=distance)
    np.multiply(distance, _T_SCALE, out=t)
    t += _ONE
    np.divide(_ONE, t, out=t)
    np.multiply(t, _SERIES[0], out=series)
    for coefficient in _SERIES[1:]:
        series += coefficient
        series *= t
    series *= distance
    distance *= distance
    distance *= _MINUS_HALF
    np.exp(distance, out=distance)
    series *= distance
    np.maximum(numbers, _ZERO, out=t)
    np.subtract(t, series, out=series)


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
