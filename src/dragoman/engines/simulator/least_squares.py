"""Non-negative least squares with outliers held down. Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

OUTLIER = 0.03
"""Relative residuals beyond this count by their size, not by their square."""
REWEIGHTINGS = 20


class Rows(NamedTuple):
    """An over-determined system: features @ coefficients should be targets."""

    features: Matrix
    targets: Vector


class Ridge(NamedTuple):
    """The coefficient of this column is expected to be `value`; a deviation of all of it costs weight squared."""

    column: int
    value: float
    weight: float


def solve(singles: Rows, totals: Rows, *, total_weight: float, ridges: Sequence[Ridge]) -> tuple[Vector, float]:
    """Coefficients, none negative and the first positive, and the median residual of the singles.

    Singles are weighed down where they do not fit (iteratively, towards least absolute deviations); totals are not.
    """
    extra = _ridge_rows(ridges, singles.features.shape[1])
    fixed = Rows(
        np.vstack([totals.features * total_weight, extra.features]),
        np.concatenate([totals.targets * total_weight, extra.targets]),
    )
    weights = np.ones(len(singles.targets))
    coefficients, residuals = np.zeros(singles.features.shape[1]), np.zeros(len(singles.targets))
    for _ in range(REWEIGHTINGS):
        features = np.vstack([singles.features * weights[:, None], fixed.features])
        coefficients = non_negative(features, np.concatenate([singles.targets * weights, fixed.targets]))
        residuals = singles.features @ coefficients - singles.targets
        weights = (1 + (residuals / OUTLIER) ** 2) ** -0.25
    return coefficients, float(np.median(np.abs(residuals)))


def non_negative(features: Matrix, targets: Vector) -> Vector:
    """The best coefficients that are not negative, the first of them positive: exact, by trying every set of zeros.

    Raises ValueError if not even the first column alone explains the targets.
    """
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    scaled = features / scale
    rest = range(1, features.shape[1])
    best, least = None, np.inf
    for size in range(features.shape[1]):
        for others in combinations(rest, size):
            columns = [0, *others]
            found = np.linalg.lstsq(scaled[:, columns], targets, rcond=None)[0]
            if found[0] <= 0 or (found < 0).any():
                continue
            error = float(np.sum((scaled[:, columns] @ found - targets) ** 2))
            if error < least:
                best, least = np.zeros(features.shape[1]), error
                best[columns] = found
    if best is None:
        raise ValueError("no coefficients above zero explain the measurements")
    return best / scale


def _ridge_rows(ridges: Sequence[Ridge], columns: int) -> Rows:
    features = np.zeros((len(ridges), columns))
    for row, ridge in enumerate(ridges):
        features[row, ridge.column] = ridge.weight / ridge.value
    return Rows(features, np.array([ridge.weight for ridge in ridges]))
