"""Predictions beside public measurements of vLLM, and the fit of their constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.roofline import (
    Fit,
    Metric,
    Row,
    build_comparison,
    load_published,
    load_rows,
    predict_rows,
)

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
    # Three or four rows of each group; the long form has all, and the bounds.
    rows = choose_rows(load, kind)
    assert compute_median(rows[:: len(rows) // 3], metric) < 1.5 * most


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


def test_published_predictions_are_of_measured_rows() -> None:
    rows = {row.name: row for row in choose_rows("decode", "dense")}
    rows |= {row.name: row for row in choose_rows("decode", "mixture of experts")}
    published = load_published()
    assert len({(each.simulator, each.id) for each in published}) == len(published)
    assert {each.id for each in published} <= set(rows)
    # The errors of E2E that are published with them.
    errors = {
        (each.simulator, each.id): each.predicted["e2e"] / rows[each.id].measured["e2e"] - 1
        for each in published
    }
    assert errors["aiconfigurator", "16.0"] == pytest.approx(0.0311, abs=1e-4)
    assert errors["blis-evolved", "27.1"] == pytest.approx(0.1012, abs=1e-4)
    assert errors["vidur", "40.0"] == pytest.approx(0.7304, abs=1e-4)


def test_build_comparison_has_our_errors_on_their_rows() -> None:
    published = [each for each in load_published() if each.id in ("40.0", "40.1")]
    rows = [row for row in choose_rows("decode", "dense") if row.name in ("40.0", "40.1")]
    errors: list[tuple[Row, dict[Metric, float]]] = [
        (row, {"e2e": 0.01, "ttft": -0.02, "tpot": 0.03}) for row in rows
    ]
    lines = build_comparison(errors, errors, published)
    vidur = lines.index(
        "| dense | 2 | Vidur | 463.9 (+463.9) | 25246.2 (+25246.2) | 155.2 (+155.2) |"
    )
    assert lines[vidur + 1] == "| | | our fit | 1.0 (+1.0) | 2.0 (-2.0) | 3.0 (+3.0) |"
    assert not any("AIConfigurator" in line for line in lines)
