"""Plots of a calibration: measured against simulated times."""

# matplotlib's annotations of `plot` and its like are incomplete.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman_check.plots.figure import MEASURED, SIMULATED, Panel, draw_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dragoman_check.load.request_timing import Timing


Values = NDArray[np.float64]


def draw_calibration(
    path: str,
    measured: Sequence[Timing],
    simulated: Sequence[Timing],
    fitted: Collection[str],
    title: str,
) -> None:
    """Draw measured against simulated times of every request, and their distributions
    for held-out requests.

    fitted: ids of the requests that the profile was fitted on.
    """
    pairs = list(zip(measured, simulated, strict=True))
    fitted_pairs = [pair for pair in pairs if pair[0].id in fitted]
    held_out = [pair for pair in pairs if pair[0].id not in fitted]
    metrics = (("TTFT", _read_ttft), ("latency", _read_latency), ("TPOT", _read_tpot))
    points = [
        _build_scatter_panel(
            name, _extract_values(fitted_pairs, value), _extract_values(held_out, value)
        )
        for name, value in metrics
    ]
    draw_figure(
        path,
        [
            *points,
            *(
                _build_comparison_panel(name, *_extract_values(held_out, value))
                for name, value in metrics
            ),
        ],
        title,
    )


def _extract_values(
    pairs: Sequence[tuple[Timing, Timing]], value: Callable[[Timing], float]
) -> tuple[Values, Values]:
    """Return the measured and the simulated values, in milliseconds. value: reads a
    timing's value in seconds.
    """
    rows = [(value(measured), value(simulated)) for measured, simulated in pairs]
    values = np.array(rows, dtype=np.float64).reshape(-1, 2)
    return values[:, 0] * 1000, values[:, 1] * 1000


def _read_ttft(timing: Timing) -> float:
    return timing.ttft


def _read_latency(timing: Timing) -> float:
    return timing.latency


def _read_tpot(timing: Timing) -> float:
    return timing.tpot or 0.0


def _build_scatter_panel(
    name: str, fitted: tuple[Values, Values], held_out: tuple[Values, Values]
) -> Panel:
    def draw(axes: Axes) -> None:
        maximum = float(max(values.max() for values in (*fitted, *held_out))) * 1.05
        axes.plot((0, maximum), (0, maximum), color=MEASURED, linewidth=0.8)
        axes.scatter(*fitted, s=8, color=MEASURED, label="fitted")
        axes.scatter(*held_out, s=8, color=SIMULATED, label="held out")
        axes.set(
            xlabel=f"{name} measured, ms",
            ylabel=f"{name} simulated, ms",
            xlim=(0, maximum),
            ylim=(0, maximum),
        )
        axes.legend()

    return draw


def _build_comparison_panel(name: str, measured: Values, simulated: Values) -> Panel:
    def draw(axes: Axes) -> None:
        shares = np.arange(1, len(measured) + 1) / len(measured)
        axes.plot(np.sort(measured), shares, color=MEASURED, label="measured")
        axes.plot(np.sort(simulated), shares, color=SIMULATED, label="simulated")
        relative_error = float(simulated.mean() / measured.mean()) - 1
        axes.set(
            xlabel=f"{name}, ms",
            ylabel="share of those held out",
            title=f"mean off by {relative_error:+.2%}",
        )
        axes.legend()

    return draw
