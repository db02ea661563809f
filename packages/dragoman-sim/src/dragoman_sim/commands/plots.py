"""Plots of a simulation, a calibration, a benchmark or a plan, as PNG, SVG, PDF or one
HTML page.
"""

# pyright: reportUnknownMemberType=false
# matplotlib's keyword arguments have no types.

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Collection, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman_check.load.workload import scale_arrivals
from dragoman_check.load.bench_report import list_changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..lab.fleet import Fleet
    from ..lab.planner import Objective, Plan
    from ..lab.replay import ReplayResult, StepLog
    from ..lab.report import Slo
    from ..lab.routing import Routing
    from dragoman_check.load.workload import Timing, WorkloadRequest
    from dragoman_check.load.bench_report import Run

SUFFIXES = (".png", ".svg", ".pdf", ".html")
Panel = Callable[["Axes"], None]
"""Draws one panel of a figure."""
Values = NDArray[np.float64]
RATE_FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Arrival rates of the plot of rates, relative to the workload's."""
MEASURED = "tab:gray"
SIMULATED = "tab:blue"
LIMIT = "tab:red"
RUN_COLORS = ("tab:blue", "tab:orange")
"""Colors of the first run and of the run compared with it."""


class PlotError(ValueError):
    """The plot cannot be drawn; the message gives the reason."""


def check_plot_path(path: str) -> None:
    """Raise PlotError before a long computation if its plot could not be drawn."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise PlotError(f"--plots {path}: the file must end in one of {', '.join(SUFFIXES)}")
    try:
        import matplotlib as _  # noqa: F401, PLC0415
    except ImportError:
        raise PlotError(
            "--plots needs matplotlib: pip install '.[plots]' in the clone of Dragoman"
        ) from None


def draw_simulation(path: str, replay: ReplayResult, slo: Slo | None, title: str) -> None:
    """Draw distributions of the times, and the number of requests and KV cache usage
    over time.
    """
    limits = (slo.ttft, slo.tpot, slo.latency) if slo is not None else (None, None, None)
    timings = replay.timings
    tpots = [timing.tpot for timing in timings if timing.tpot is not None]
    panels: list[Panel] = [
        _build_distribution_panel("TTFT", [timing.ttft for timing in timings], limits[0]),
        _build_distribution_panel("TPOT", tpots, limits[1]),
        _build_distribution_panel("latency", [timing.latency for timing in timings], limits[2]),
        _build_time_panel("requests running", replay.steps, lambda log: log.running),
        _build_time_panel("requests waiting", replay.steps, lambda log: log.waiting),
        _build_time_panel("KV cache, share held", replay.steps, lambda log: log.kv_usage),
    ]
    _draw_figure(path, panels, title)


def draw_benchmark(path: str, runs: Sequence[Run], slo: Slo | None) -> None:
    """Draw distributions of the times of one or two runs, and their requests over time."""
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
    _draw_figure(
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


def draw_plan(
    path: str, result: Plan, workload: Sequence[WorkloadRequest], routing: Routing
) -> None:
    """Draw cost against latency of all fleets; of the best fleet also its times, and
    its latency by arrival rate.
    """
    best = result.best
    title = (
        "No configuration meets the objectives"
        if best is None
        else f"{best.units} x {best.candidate.description}"
    )
    panels: list[Panel] = [_build_pareto_panel(result)]
    if best is not None:
        fleet = best.candidate.build_fleet(best.units, routing)
        replay = fleet.serve(workload)
        limits = {objective.metric: objective.limit for objective in result.objectives}
        panels += [
            _build_distribution_panel(
                "TTFT", [timing.ttft for timing in replay.timings], limits.get("ttft")
            ),
            _build_distribution_panel("ITL", replay.gaps, limits.get("itl")),
            _build_distribution_panel(
                "latency", [timing.latency for timing in replay.timings], limits.get("latency")
            ),
            _build_rate_panel(fleet, workload, result.objectives),
            _build_time_panel("requests running", replay.steps, lambda log: log.running),
        ]
    _draw_figure(path, panels, title)


def _build_pareto_panel(result: Plan) -> Panel:
    objective = result.objectives[0]
    sufficient = [fleet for fleet in result.fleets if fleet.units and fleet.report is not None]
    front = [fleet for fleet in result.pareto if fleet.report is not None]

    def draw(axes: Axes) -> None:
        for gpu in dict.fromkeys(fleet.candidate.gpu for fleet in sufficient):
            points = [
                (fleet.cost_per_million_tokens, 1000 * objective.read(fleet.report))
                for fleet in sufficient
                if fleet.candidate.gpu == gpu and fleet.report is not None
            ]
            axes.scatter(*zip(*points, strict=True), s=18, label=gpu)
        line = [
            (fleet.cost_per_million_tokens, 1000 * objective.read(fleet.report))
            for fleet in front
            if fleet.report
        ]
        if line:
            axes.plot(*zip(*line, strict=True), color=MEASURED, linewidth=0.8, label="Pareto front")
            axes.legend()
        axes.axhline(objective.limit * 1000, color=LIMIT, linestyle="--")
        axes.set(
            xlabel="cost per million output tokens",
            ylabel=f"{objective.statistic} {objective.metric}, ms",
        )

    return draw


def _build_rate_panel(
    fleet: Fleet, workload: Sequence[WorkloadRequest], objectives: Sequence[Objective]
) -> Panel:
    """Build a panel with the first objective's metric at arrival rates around the
    workload's own.
    """

    def draw(axes: Axes) -> None:
        reports = [fleet.build_report(scale_arrivals(workload, factor)) for factor in RATE_FACTORS]
        rates = [report.request_rate for report in reports]
        axes.plot(
            rates,
            [1000 * objectives[0].read(report) for report in reports],
            marker="o",
            color=SIMULATED,
        )
        axes.axhline(objectives[0].limit * 1000, color=LIMIT, linestyle="--", label="SLO")
        axes.axvline(
            rates[RATE_FACTORS.index(1.0)], color=MEASURED, linewidth=0.8, label="this workload"
        )
        axes.legend()
        axes.set(
            xlabel="requests per second",
            ylabel=f"{objectives[0].statistic} {objectives[0].metric}, ms",
            yscale="log",
        )

    return draw


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
    _draw_figure(
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


def _build_distribution_panel(name: str, seconds: Sequence[float], limit: float | None) -> Panel:
    def draw(axes: Axes) -> None:
        values = np.sort(np.array(seconds, dtype=np.float64)) * 1000
        axes.plot(values, np.arange(1, len(values) + 1) / max(1, len(values)), color=SIMULATED)
        if limit is not None:
            axes.axvline(
                limit * 1000, color=LIMIT, linestyle="--", label=f"SLO {limit * 1000:g} ms"
            )
            axes.legend()
        axes.set(xlabel=f"{name}, ms", ylabel="share of the requests", ylim=(0, 1.02))

    return draw


def _build_time_panel(
    name: str, steps: Sequence[StepLog], column: Callable[[StepLog], Sequence[float]]
) -> Panel:
    def draw(axes: Axes) -> None:
        for index, log in enumerate(steps):
            axes.plot(
                log.ends,
                column(log),
                linewidth=0.8,
                drawstyle="steps-post",
                label=f"replica {index}",
            )
        if 1 < len(steps) <= 8:
            axes.legend(fontsize="small")
        axes.set(xlabel="s", ylabel=name, ylim=(0, None))

    return draw


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


def _draw_figure(path: str, panels: Sequence[Panel], title: str) -> None:
    """Draw up to six panels to a file. HTML is a page with one inline SVG: no scripts,
    no external resources.
    """
    check_plot_path(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(15, 8.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(2, 3, index + 1))
    if Path(path).suffix.lower() != ".html":
        figure.savefig(path, dpi=110)
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    image = base64.b64encode(buffer.getvalue()).decode()
    page = (
        f"<!doctype html>\n<meta charset=utf-8>\n<title>{escape(title)}</title>\n"
        f'<img alt="{escape(title)}" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{image}">\n'
    )
    Path(path).write_text(page, encoding="utf-8")
