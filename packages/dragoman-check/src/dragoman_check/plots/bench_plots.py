"""Plots of one or two benchmark runs."""

# matplotlib's annotations of `plot` and its like are incomplete.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..load.concurrency import list_changes
from .figure import LIMIT, Panel, draw_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..load.bench_run import Run
    from ..load.load_statistics import Slo
    from ..load.request_timing import Timing


RUN_COLORS = ("tab:blue", "tab:orange")
"""Colors of the first run and of the run compared with it."""


def draw_benchmark(path: str, runs: Sequence[Run], slo: Slo | None) -> None:
    """Draw distributions of the times of one or two runs, and their requests over
    time.
    """
    ttft, tpot, latency = (
        (slo.ttft, slo.tpot, slo.latency) if slo is not None else (None, None, None)
    )
    panels: list[Panel] = [
        _build_runs_panel(
            "TTFT", [(run.name, [timing.ttft for timing in run.timings]) for run in runs], ttft
        ),
        _build_runs_panel("ITL", [(run.name, run.gaps) for run in runs if run.gaps], tpot),
        _build_runs_panel(
            "E2E", [(run.name, [timing.latency for timing in run.timings]) for run in runs], latency
        ),
        _build_timeline_panel("TTFT, ms", runs, lambda timing: 1000 * timing.ttft),
        _build_timeline_panel("E2E, ms", runs, lambda timing: 1000 * timing.latency),
        _build_running_panel(runs),
    ]
    draw_figure(
        path, panels, " and ".join(f"{run.name}, {len(run.timings)} requests" for run in runs)
    )


def _build_runs_panel(
    name: str, runs: Sequence[tuple[str, Sequence[float]]], limit: float | None
) -> Panel:
    """Build a panel with the distribution of one metric in each run.

    runs: label and values, in seconds.
    limit: SLO in seconds; None if there is none.
    """

    def draw(axes: Axes) -> None:
        for (label, seconds), color in zip(runs, RUN_COLORS, strict=False):
            values = np.sort(np.array(seconds, dtype=np.float64)) * 1000
            axes.plot(
                values,
                np.arange(1, len(values) + 1) / max(1, len(values)),
                color=color,
                label=label,
            )
        if limit is not None:
            axes.axvline(
                limit * 1000, color=LIMIT, linestyle="--", label=f"SLO {limit * 1000:g} ms"
            )
        axes.set(xlabel=f"{name}, ms", ylabel="share", ylim=(0, 1.02))
        if runs:
            axes.legend(fontsize="small")

    return draw


def _build_timeline_panel(name: str, runs: Sequence[Run], read: Callable[[Timing], float]) -> Panel:
    """Build a panel with one point per request, at the time when it was sent."""

    def draw(axes: Axes) -> None:
        for run, color in zip(runs, RUN_COLORS, strict=False):
            points = [(timing.arrival_s, read(timing)) for timing in run.timings]
            axes.scatter(*zip(*points, strict=True), s=8, color=color)
        axes.set(xlabel="sent at, s", ylabel=name, ylim=(0, None))

    return draw


def _build_running_panel(runs: Sequence[Run]) -> Panel:
    def draw(axes: Axes) -> None:
        for run, color in zip(runs, RUN_COLORS, strict=False):
            changes = list_changes(run.timings)
            counts = np.cumsum([change for _, change in changes])
            axes.plot(
                [at for at, _ in changes],
                counts,
                color=color,
                linewidth=0.8,
                drawstyle="steps-post",
            )
        axes.set(xlabel="s", ylabel="requests running", ylim=(0, None))

    return draw
