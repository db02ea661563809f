"""Predictions beside public measurements of vLLM, and the fit of their constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.roofline import Fit, Metric, Row, load_rows, predict_rows

ROWS = load_rows()
GROUPS: list[tuple[str, str, Metric, float]] = [
    ("decode", "dense", "e2e", 0.06),
    ("decode", "mixture of experts", "e2e", 0.10),
    ("saturated", "dense", "duration", 0.15),
    ("saturated", "mixture of experts", "duration", 0.15),
    ("few streams", "mixture of experts", "tpot", 0.20),
]


def choose_rows(load: str, kind: str) -> list[Row]:
    return [row for row in ROWS if (row.load, row.kind) == (load, kind)]


def compute_median(rows: Sequence[Row], metric: Metric) -> float:
    return float(np.median([abs(errors[metric]) for _, errors in predict_rows(rows)]))


@pytest.mark.parametrize(("load", "kind", "metric", "most"), GROUPS)
def test_predicted_rows_median_error_within_bound(
    load: str, kind: str, metric: Metric, most: float
) -> None:
    # Few of the rows; the long form has the bounds.
    assert compute_median(choose_rows(load, kind)[::8], metric) < 1.5 * most


@pytest.mark.long
@pytest.mark.parametrize(("load", "kind", "metric", "most"), GROUPS)
def test_all_predicted_rows_median_error_within_bound(
    load: str, kind: str, metric: Metric, most: float
) -> None:
    assert compute_median(choose_rows(load, kind), metric) < most


def test_fit_of_few_rows_predicts_their_means() -> None:
    rows = [row for row in choose_rows("decode", "dense") if row.gpu_name == "l40s"]
    fit = Fit(rows)
    fit.run(rounds=1)
    for row, errors in predict_rows(rows, fit):
        assert abs(errors["e2e"]) < 0.05, row.name
