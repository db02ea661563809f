"""Search for the cheapest fleet that meets the objectives.

Each candidate is a predicted or measured profile, whose smallest sufficient fleet is
found by simulation. Candidates are independent of each other, so they can be simulated
in parallel processes.
"""

from __future__ import annotations

import multiprocessing
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

import msgspec
from msgspec import Struct

from dragoman.core.errors import DragomanError
from dragoman_check.load.request_table import RequestTable
from dragoman_check.load.workload import WorkloadRequest

from .fleet_options import FleetOption
from .objectives import Objective, PlanError
from .prediction_error import find_prediction_error
from .replica_router import Routing
from .simulation_report import Report


class PlannedFleet(Struct, frozen=True):
    """The smallest fleet of a candidate that meets the objectives, or the reason why
    there is none.

    units: replicas, or groups of prefill and decode replicas; 0 if no allowed number
        suffices.
    devices: number of devices of the fleet.
    cost_per_hour: cost of all devices, in the prices' currency.
    cost_per_million_tokens: cost per million output tokens, at the rate at which the
        workload asks for them: the time to answer the last requests does not count.
    joules_per_token: energy per output token at that rate and full board power; None if
        the device's power is unknown.
    margins: how far each objective's figure is below its limit, relative to the figure;
        empty without a simulation.
    is_within_error: whether one of them is less than the prediction's error.
    report: report of the smallest sufficient fleet, or of the largest insufficient one;
        None without a simulation.
    failure: reason why no fleet suffices; None if one does.
    """

    candidate: FleetOption
    units: int
    devices: int
    cost_per_hour: float
    cost_per_million_tokens: float
    joules_per_token: float | None
    report: Report | None
    failure: str | None = None
    margins: tuple[float, ...] = ()
    is_within_error: bool = False


class Plan(Struct, frozen=True):
    """The result of a search.

    objectives: the objectives of the search.
    fleets: sufficient fleets by cost, then the candidates that failed.
    simulated: number of fleets that were simulated.
    """

    objectives: tuple[Objective, ...]
    fleets: tuple[PlannedFleet, ...]
    simulated: int

    @property
    def best(self) -> PlannedFleet | None:
        return self.fleets[0] if self.fleets and self.fleets[0].units else None

    @property
    def pareto(self) -> tuple[PlannedFleet, ...]:
        """Sufficient fleets, by cost, that no other one beats: one that costs no more
        and is no slower by any objective.
        """
        figures = [
            (fleet, (fleet.cost_per_hour, *(each.read(fleet.report) for each in self.objectives)))
            for fleet in self.fleets
            if fleet.units and fleet.report is not None
        ]
        return tuple(
            fleet
            for fleet, own in figures
            if not any(other != own and all(map(operator.le, other, own)) for _, other in figures)
        )


def plan(
    candidates: Sequence[FleetOption],
    workload: Sequence[WorkloadRequest],
    objectives: tuple[Objective, ...],
    *,
    max_devices: int = 64,
    routing: Routing = "round-robin",
    margin: float | None = None,
    processes: int = 1,
    tick: Callable[[int], None] | None = None,
) -> Plan:
    """Find the smallest sufficient fleet of every candidate.

    max_devices: maximum devices of a fleet.
    margin: fleets whose figures are within it of a limit are marked; None is the error
        of predictions for the device and the kind of model.
    processes: worker processes; with 1 the search runs in this process.
    tick: called with the number of candidates done.

    Raises:
        PlanError: there is no candidate or no objective.
    """
    if not candidates or not objectives:
        raise PlanError("a plan needs at least one configuration and one objective")
    results: list[tuple[PlannedFleet, int]] = []
    if processes <= 1:
        for candidate in candidates:
            results.append(_search(candidate, workload, objectives, max_devices, routing, margin))
            if tick is not None:
                tick(len(results))
    else:
        # Spawned, since forking is unsafe if the parent has threads. Each process gets
        # the workload once.
        context = multiprocessing.get_context("spawn")
        shared = workload if isinstance(workload, RequestTable) else msgspec.json.encode(workload)
        with ProcessPoolExecutor(processes, context, _share_workload, (shared,)) as pool:
            tasks = [
                pool.submit(_search_shared, candidate, objectives, max_devices, routing, margin)
                for candidate in candidates
            ]
            for task in as_completed(tasks):
                results.append(task.result())
                if tick is not None:
                    tick(len(results))
    fleets = sorted((fleet for fleet, _ in results), key=partial(_rank, objectives=objectives))
    return Plan(objectives, tuple(fleets), sum(trials for _, trials in results))


def _rank(
    fleet: PlannedFleet, objectives: tuple[Objective, ...]
) -> tuple[bool, float, tuple[float, ...], int, str]:
    """Rank by cost, then by the objectives' figures, so that the first fleet is on the
    Pareto front.
    """
    figures = (
        tuple(objective.read(fleet.report) for objective in objectives)
        if fleet.units and fleet.report is not None
        else ()
    )
    description = fleet.candidate.description
    return not fleet.units, fleet.cost_per_hour, figures, fleet.devices, description


def _search(
    candidate: FleetOption,
    workload: Sequence[WorkloadRequest],
    objectives: tuple[Objective, ...],
    max_devices: int,
    routing: Routing,
    margin: float | None,
) -> tuple[PlannedFleet, int]:
    """Return the smallest sufficient fleet, found by doubling, then bisecting; and the
    number of simulations.
    """
    reports: dict[int, Report] = {}

    def is_enough(units: int) -> bool:
        if units not in reports:
            reports[units] = candidate.build_fleet(units, routing).build_report(workload)
        return all(objective.is_met(reports[units]) for objective in objectives)

    max_units = max_devices // candidate.devices_per_unit
    try:
        if max_units < 1:
            return _fail(candidate, f"one replica needs {candidate.devices_per_unit} devices"), 0
        low = 0
        high = 1
        while not is_enough(high):
            if high == max_units:
                missed = [
                    str(objective)
                    for objective in objectives
                    if not objective.is_met(reports[high])
                ]
                return _fail(
                    candidate, f"{high} are not enough for {', '.join(missed)}", reports[high]
                ), len(reports)
            low = high
            high = min(2 * high, max_units)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
    except (
        ValueError,
        DragomanError,
    ) as error:  # Such as a request that this configuration can never run.
        return _fail(candidate, str(error)), len(reports)
    report = reports[high]
    devices = high * candidate.devices_per_unit
    per_hour = devices * candidate.price
    watts = candidate.profile.hardware.watts
    rate = measure_token_rate(workload) or report.output_token_rate
    margins = tuple(
        objective.limit / value - 1 if (value := objective.read(report)) else float("inf")
        for objective in objectives
    )
    errors = (
        find_prediction_error(candidate.gpu, objective.metric, is_moe=candidate.is_moe)
        if margin is None
        else margin
        for objective in objectives
    )
    fleet = PlannedFleet(
        candidate=candidate,
        units=high,
        devices=devices,
        cost_per_hour=per_hour,
        cost_per_million_tokens=per_hour / 3600 / rate * 1e6,
        joules_per_token=None if watts is None else devices * watts / rate,
        report=report,
        margins=margins,
        is_within_error=any(map(operator.lt, margins, errors)),
    )
    return fleet, len(reports)


def measure_token_rate(workload: Sequence[WorkloadRequest]) -> float | None:
    """Return the output tokens per second for which a workload asks, from its first to
    its last arrival; None if all arrive at once, or some when others are answered.
    """
    if isinstance(workload, RequestTable):
        span = max(workload.arrivals) - min(workload.arrivals)
        tokens = sum(workload.outputs)
    else:
        if any(request.after is not None for request in workload):
            return None
        arrivals = [request.arrival_s for request in workload]
        span = max(arrivals) - min(arrivals)
        tokens = sum(request.output_tokens for request in workload)
    return tokens / span if span > 0 and tokens else None


def _fail(candidate: FleetOption, reason: str, report: Report | None = None) -> PlannedFleet:
    return PlannedFleet(candidate, 0, 0, float("inf"), float("inf"), None, report, reason)


_shared_workload: list[Sequence[WorkloadRequest]] = []
"""The workload in a worker process, as a list of one; set when the process starts."""


def _share_workload(shared: RequestTable | bytes) -> None:
    """Set the workload of a worker process.

    shared: a table, or the requests as JSON, which is faster than pickle.
    """
    is_table = isinstance(shared, RequestTable)
    _shared_workload[:] = [
        shared if is_table else msgspec.json.decode(shared, type=list[WorkloadRequest])
    ]


def _search_shared(
    candidate: FleetOption,
    objectives: tuple[Objective, ...],
    max_devices: int,
    routing: Routing,
    margin: float | None,
) -> tuple[PlannedFleet, int]:
    return _search(candidate, _shared_workload[0], objectives, max_devices, routing, margin)


def render_plan(result: Plan, most: int = 10) -> str:
    """Render the result as a sentence and a table of the `most` cheapest fleets; *
    marks the Pareto front, ~ those within the prediction's error of a limit.
    """
    best = result.best
    objectives = " and ".join(map(str, result.objectives))
    if best is None:
        lines = [f"No configuration meets {objectives}."]
        lines += [
            f"  {fleet.candidate.description}: {fleet.failure}" for fleet in result.fleets[:most]
        ]
        return "\n".join(lines) + "\n"
    kind = "replica" if not best.candidate.prefill else "unit"
    lines = [
        f"Cheapest for {objectives}: {best.units} {kind}{'s' * (best.units > 1)} of "
        f"{best.candidate.description}, "
        f"{best.devices} x {best.candidate.gpu}, {best.cost_per_hour:.2f} per hour, "
        f"{best.cost_per_million_tokens:.2f} per million output tokens.",
    ]
    if best.is_within_error:
        closest = min(zip(best.margins, result.objectives, strict=True), key=lambda pair: pair[0])
        lines.append(
            f"Its {closest[1].statistic} {closest[1].metric} is {closest[0]:.1%} below the limit, "
            f"less than the error of the prediction: measure it, or add a replica."
        )
    listed = result.fleets[:most]
    names = [f"{fleet.units} x {fleet.candidate.description}" for fleet in listed if fleet.units]
    width = max(46, *map(len, names)) + 2
    lines += [
        "",
        f"{'configuration':<{width}}{'devices':>8}{'per hour':>10}{'per Mtok':>10}{'J/token':>9}"
        + "".join(
            f"{objective.statistic + ' ' + objective.metric:>14}" for objective in result.objectives
        ),
    ]
    front = {id(fleet) for fleet in result.pareto}
    for fleet in listed:
        if fleet.report is None or not fleet.units:
            lines.append(f"  {fleet.candidate.description}: {fleet.failure}")
            continue
        joules = "-" if fleet.joules_per_token is None else f"{fleet.joules_per_token:.2f}"
        name = f"{fleet.units} x {fleet.candidate.description}"
        marks = ("*" if id(fleet) in front else " ") + ("~" if fleet.is_within_error else " ")
        lines.append(
            f"{marks}{name:<{width - 2}}{fleet.devices:>8}"
            f"{fleet.cost_per_hour:>10.2f}{fleet.cost_per_million_tokens:>10.2f}{joules:>9}"
            + "".join(
                f"{1000 * objective.read(fleet.report):>11.1f} ms"
                for objective in result.objectives
            )
        )
    hidden = len(result.fleets) - most
    if hidden > 0:
        lines.append(f"  and {hidden} more, in the JSON output")
    return "\n".join(lines) + "\n"
