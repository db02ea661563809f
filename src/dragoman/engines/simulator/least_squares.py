"""Non-negative least squares, robust to outliers. Pure."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

OUTLIER_RESIDUAL = 0.03
"""Relative residuals beyond this count by their size, not by their square."""
REWEIGHTINGS = 20
RIDGE = 1e-12
"""Ridge that separates collinear columns; far below anything measured."""


class Rows(NamedTuple):
    """An over-determined system: features @ coefficients should be targets."""

    features: Matrix
    targets: Vector


def solve(weighted_rows: Rows, fixed_rows: Rows) -> Vector:
    """Solve for coefficients, none negative and the first positive.

    Outliers among the weighted rows are down-weighted (iteratively, towards least absolute deviations); fixed rows are
    not.
    Raises ValueError if no such coefficients explain the targets.
    """
    weights = np.ones(len(weighted_rows.targets))
    coefficients = np.zeros(weighted_rows.features.shape[1])
    for _ in range(REWEIGHTINGS):
        features = np.vstack([weighted_rows.features * weights[:, None], fixed_rows.features])
        coefficients = solve_non_negative(
            Rows(features, np.concatenate([weighted_rows.targets * weights, fixed_rows.targets]))
        )
        residuals = weighted_rows.features @ coefficients - weighted_rows.targets
        # Iteratively reweighted: a request far off (a retry, a pause of the client) pulls less on the fit.
        weights = (1 + (residuals / OUTLIER_RESIDUAL) ** 2) ** -0.25
    return coefficients


def solve_non_negative(rows: Rows) -> Vector:
    """The best coefficients that are not negative, the first of them positive: exact, by trying every set of zeros."""
    scale = np.linalg.norm(rows.features, axis=0)
    scale[scale == 0] = 1.0
    # Seconds per step and per token differ by many orders of magnitude; unscaled, the ridge would only affect one of
    # them.
    scaled = rows.features / scale
    gram = scaled.T @ scaled + RIDGE * np.eye(len(scale))
    moments = scaled.T @ rows.targets
    best, min_error = np.zeros(len(scale)), 0.0
    # 2**k solutions of a small system: exact, and for about ten columns faster than an iterative solver.
    for selected in product((False, True), repeat=len(scale) - 1):
        free = np.flatnonzero((True, *selected))
        solution = np.asarray(np.linalg.solve(gram[np.ix_(free, free)], moments[free]), dtype=np.float64)
        error = -float(moments[free] @ solution)  # the sum of squares, less that of the targets
        if error < min_error and solution[0] > 0 and (solution >= 0).all():
            best, min_error = np.zeros(len(scale)), error
            best[free] = solution
    if not best[0] > 0:
        raise ValueError("no coefficients above zero explain the measurements")
    return best / scale
