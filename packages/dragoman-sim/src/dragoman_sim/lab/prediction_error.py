"""The error of predictions on models that the constants were not fitted to."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
from msgspec import Struct

from dragoman.core.strict_yaml import load_yaml

from .objectives import Metric


class PredictionError(Struct, frozen=True, forbid_unknown_fields=True):
    """The median absolute error of some measured rows, as a share.

    model: `dense` or `mixture of experts`.
    gpu: name of the table of GPUs; `all` for all devices.
    """

    model: str
    gpu: str
    ttft: float
    tpot: float
    latency: float


@cache
def load_prediction_errors() -> tuple[PredictionError, ...]:
    """Load the errors at a constant rate, which `python -m benchmarks.roofline --write`
    writes beside those of docs/plan.md.
    """
    text = (files("dragoman_sim.lab") / "prediction_errors.yaml").read_bytes()
    return msgspec.convert(load_yaml(text), tuple[PredictionError, ...])


def find_prediction_error(gpu: str, metric: Metric, *, is_moe: bool) -> float:
    """Return the error to expect of a metric: that of the device if it was measured,
    else of all.
    """
    model = "mixture of experts" if is_moe else "dense"
    rows = [row for row in load_prediction_errors() if row.model == model]
    found = next((row for row in rows if row.gpu == gpu), None)
    found = found or next(row for row in rows if row.gpu == "all")
    # A gap between tokens is a step, as the mean of a request's gaps is.
    return getattr(found, "tpot" if metric == "itl" else metric)
