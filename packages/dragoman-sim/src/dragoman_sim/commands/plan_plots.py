"""Plots of a plan: cost against latency of all fleets, the best fleet by arrival rate."""

# matplotlib's annotations of `plot` and its like are incomplete.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman_check.load.workload_transforms import scale_arrivals
from dragoman_check.plots.figure import LIMIT, MEASURED, SIMULATED, Panel, draw_figure

from .simulation_plots import build_distribution_panel, build_time_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dragoman_check.load.workload import WorkloadRequest

    from ..lab.objectives import Objective
    from ..lab.planner import Plan
    from ..lab.replica_router import Routing
    from ..lab.simulation_report import Report


RATE_FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
"""Arrival rates of the plot of rates, relative to the workload's."""


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
    panels: list[Panel] = [_build_cost_panel(result, objective) for objective in result.objectives]
    if best is not None:
        fleet = best.candidate.build_fleet(best.units, routing)
        replay = fleet.serve(workload)
        reports = [fleet.build_report(scale_arrivals(workload, factor)) for factor in RATE_FACTORS]
        limits = {objective.metric: objective.limit for objective in result.objectives}
        panels += [
            build_distribution_panel(
                "TTFT", [timing.ttft for timing in replay.timings], limits.get("ttft")
            ),
            build_distribution_panel("ITL", replay.gaps, limits.get("itl"), "tokens"),
            build_distribution_panel(
                "latency", [timing.latency for timing in replay.timings], limits.get("latency")
            ),
            build_distribution_panel(
                "TPOT",
                [tpot for timing in replay.timings if (tpot := timing.tpot) is not None],
                limits.get("tpot"),
            ),
            *(build_rate_panel(reports, objective) for objective in result.objectives),
            build_time_panel("requests running", replay.steps, lambda log: log.running),
        ]
    draw_figure(path, panels, title)


def _build_cost_panel(result: Plan, objective: Objective) -> Panel:
    """Build a panel with cost against an objective's metric."""
    sufficient = [fleet for fleet in result.fleets if fleet.units and fleet.report is not None]
    front = {id(fleet) for fleet in result.pareto}

    def draw(axes: Axes) -> None:
        for gpu in dict.fromkeys(fleet.candidate.gpu for fleet in sufficient):
            points = [
                (fleet.cost_per_million_tokens, 1000 * objective.read(fleet.report))
                for fleet in sufficient
                if fleet.candidate.gpu == gpu and fleet.report is not None
            ]
            axes.scatter(*zip(*points, strict=True), s=18, label=gpu)
        for fleet in sufficient:
            assert fleet.report is not None
            axes.annotate(
                f"{fleet.units} x {fleet.candidate.devices_per_unit}",
                (fleet.cost_per_million_tokens, 1000 * objective.read(fleet.report)),
                textcoords="offset points",
                xytext=(5, 4),
                fontsize="x-small",
            )
        best = [
            (fleet.cost_per_million_tokens, 1000 * objective.read(fleet.report))
            for fleet in sufficient
            if id(fleet) in front and fleet.report is not None
        ]
        if best:
            axes.scatter(
                *zip(*best, strict=True),
                s=60,
                facecolors="none",
                edgecolors=MEASURED,
                label="Pareto front",
            )
        axes.axhline(objective.limit * 1000, color=LIMIT, linestyle="--", label="SLO")
        axes.legend()
        axes.set_title("units x devices", fontsize="small")
        # Room for the names beside the points.
        axes.margins(x=0.15)
        axes.set(
            xlabel="cost per million output tokens",
            ylabel=f"{objective.statistic} {objective.metric}, ms",
        )

    return draw


def build_rate_panel(reports: Sequence[Report], objective: Objective) -> Panel:
    """Build a panel with an objective's metric at arrival rates around the workload's
    own.
    """
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415 - slow to import

    def draw(axes: Axes) -> None:
        axes.plot(
            RATE_FACTORS,
            [1000 * objective.read(report) for report in reports],
            marker="o",
            color=SIMULATED,
        )
        axes.axhline(objective.limit * 1000, color=LIMIT, linestyle="--", label="SLO")
        axes.axvline(1.0, color=MEASURED, linewidth=0.8, label="this workload")
        axes.legend()
        axes.set(
            # The rate at which answers are complete would include the time to answer
            # the last ones.
            xlabel="arrival rate, relative to the workload's",
            ylabel=f"{objective.statistic} {objective.metric}, ms",
            yscale="log",
        )
        for axis_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            axis_formatter(FuncFormatter(_format_tick))

    return draw


def _format_tick(value: float, _position: int) -> str:
    """Format a tick of a logarithmic axis as a plain number."""
    return f"{value:g}"
