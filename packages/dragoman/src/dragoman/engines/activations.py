"""Activation functions of neural networks, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


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
    scaled = np.abs(rows) * np.float32(0.5**0.5)
    t = np.float32(1) / (np.float32(1) + np.float32(0.3275911) * scaled)
    series = np.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series *= t
        series += np.float32(coefficient)
    tail = series * t * np.exp(-scaled * scaled) * np.float32(0.5)
    return rows * np.where(rows > 0, np.float32(1) - tail, tail)


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
