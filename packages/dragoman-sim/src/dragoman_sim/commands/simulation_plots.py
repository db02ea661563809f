"""Plots of a simulation: distributions of its times, its load over time."""

# pyright: reportUnknownMemberType=false
# matplotlib's keyword arguments have no types.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dragoman_check.plots.figure import LIMIT, SIMULATED, Panel, draw_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dragoman_check.load.load_statistics import Slo

    from ..lab.replay_result import ReplayResult, StepLog


_MOST_COLOURS = 8


def draw_simulation(path: str, replay: ReplayResult, slo: Slo | None, title: str) -> None:
    """Draw distributions of the times, and the number of requests and KV cache usage
    over time.
    """
    limits = (slo.ttft, slo.tpot, slo.latency) if slo is not None else (None, None, None)
    timings = replay.timings
    tpots = [timing.tpot for timing in timings if timing.tpot is not None]
    panels: list[Panel] = [
        build_distribution_panel("TTFT", [timing.ttft for timing in timings], limits[0]),
        build_distribution_panel("TPOT", tpots, limits[1]),
        build_distribution_panel("latency", [timing.latency for timing in timings], limits[2]),
        build_time_panel("requests running", replay.steps, lambda log: log.running),
        build_time_panel("requests waiting", replay.steps, lambda log: log.waiting),
        build_time_panel("KV cache, share held", replay.steps, lambda log: log.kv_usage),
    ]
    draw_figure(path, panels, title)


def build_distribution_panel(
    name: str, seconds: Sequence[float], limit: float | None, counted: str = "requests"
) -> Panel:
    """Build a panel with the cumulative distribution of times.

    counted: what each of them is of.
    """

    def draw(axes: Axes) -> None:
        values = np.sort(np.array(seconds, dtype=np.float64)) * 1000
        axes.plot(values, np.arange(1, len(values) + 1) / max(1, len(values)), color=SIMULATED)
        if limit is not None:
            axes.axvline(
                limit * 1000, color=LIMIT, linestyle="--", label=f"SLO {limit * 1000:g} ms"
            )
            axes.legend()
        axes.set(xlabel=f"{name}, ms", ylabel=f"share of the {counted}", ylim=(0, 1.02))

    return draw


def build_time_panel(
    name: str, steps: Sequence[StepLog], column: Callable[[StepLog], Sequence[float]]
) -> Panel:
    def draw(axes: Axes) -> None:
        # More colours than these cannot be told apart.
        is_crowd = len(steps) > _MOST_COLOURS
        for index, log in enumerate(steps):
            axes.plot(
                log.ends,
                column(log),
                linewidth=0.8,
                drawstyle="steps-post",
                color=SIMULATED if is_crowd else None,
                alpha=0.35 if is_crowd else None,
                label=f"replica {index}",
            )
        if is_crowd:
            axes.set_title(f"each of {len(steps)} replicas", fontsize="small")
        elif len(steps) > 1:
            axes.legend(fontsize="small")
        axes.set(xlabel="s", ylabel=name, ylim=(0, None))

    return draw
