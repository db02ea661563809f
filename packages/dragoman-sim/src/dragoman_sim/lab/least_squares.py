"""Non-negative least squares, robust to outliers."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


Matrix = NDArray[np.float64]


OUTLIER_RESIDUAL = 0.03
"""Relative residual beyond which the loss grows linearly instead of quadratically."""


REWEIGHTINGS = 20
"""Iterations of the reweighted least squares."""


RIDGE = 1e-12
"""Ridge term that makes collinear columns solvable; negligible against the
measurements.
"""


class Rows(NamedTuple):
    """An overdetermined linear system: features @ coefficients should equal targets."""

    features: Matrix
    targets: Vector


def solve(weighted_rows: Rows, fixed_rows: Rows) -> Vector:
    """Solve for non-negative coefficients, of which the first is positive.

    Outliers among the weighted rows are down-weighted iteratively, towards least
    absolute deviations; fixed rows are not.

    Raises:
        ValueError: no such coefficients explain the targets.
    """
    weights = np.ones(len(weighted_rows.targets))
    coefficients = np.zeros(weighted_rows.features.shape[1])
    for _ in range(REWEIGHTINGS):
        features = np.vstack([weighted_rows.features * weights[:, None], fixed_rows.features])
        coefficients = solve_non_negative(
            Rows(features, np.concatenate([weighted_rows.targets * weights, fixed_rows.targets]))
        )
        residuals = weighted_rows.features @ coefficients - weighted_rows.targets
        # An outlier (a retry, a pause of the client) must not dominate the fit.
        weights = (1 + (residuals / OUTLIER_RESIDUAL) ** 2) ** -0.25
    return coefficients


def solve_non_negative(rows: Rows) -> Vector:
    """Return the best non-negative coefficients, of which the first is positive, by
    trying every set of zeros.

    Raises:
        ValueError: no such coefficients explain the targets.
    """
    scale = np.linalg.norm(rows.features, axis=0)
    scale[scale == 0] = 1.0
    # Seconds per step and per token differ by orders of magnitude; unscaled, the ridge
    # would affect only one of them.
    scaled = rows.features / scale
    gram = scaled.T @ scaled + RIDGE * np.eye(len(scale))
    moments = scaled.T @ rows.targets
    best = np.zeros(len(scale))
    min_error = 0.0
    # Solving 2**k small systems is exact, and for about ten columns faster than an
    # iterative solver. numpy's cost per call is many times that of such a system, so that
    # those of one size are solved in one call.
    for free in _list_free_columns(len(scale)):
        solutions = np.asarray(
            np.linalg.solve(gram[free[:, :, None], free[:, None, :]], moments[free][:, :, None]),
            dtype=np.float64,
        )[:, :, 0]
        # The sums of squares, less that of the targets.
        errors = -(moments[free] * solutions).sum(axis=1)
        errors[(solutions < 0).any(axis=1) | (solutions[:, 0] == 0)] = np.inf
        lowest = int(errors.argmin())
        if errors[lowest] < min_error:
            best = np.zeros(len(scale))
            min_error = float(errors[lowest])
            best[free[lowest]] = solutions[lowest]
    if not best[0] > 0:
        raise ValueError("no coefficients above zero explain the measurements")
    return best / scale


@cache
def _list_free_columns(num_columns: int) -> list[NDArray[np.intp]]:
    """Return the sets of columns with the first, one array of rows per size of the set."""
    return [
        np.array([(0, *others) for others in combinations(range(1, num_columns), size)], np.intp)
        for size in range(num_columns)
    ]
