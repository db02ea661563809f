"""Search for the cheapest configuration that meets the objectives: GPU, parallelism,
engine settings and replicas.

Each candidate is a predicted or measured profile, whose smallest sufficient fleet is
found by simulation. Candidates are independent of each other, so they can be simulated
in parallel processes.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman.core.errors import DragomanError
from ..engine.disaggregation import TransferCost
from ..engine.profile import ProfileError, SimulatorProfile
from .fleet import Fleet
from .replay import DisaggregationConfig
from .report import Report, Spread
from .roofline import Gpu, ModelShape, Parallelism, predict_profile
from .routing import Routing
from dragoman_check.load.workload import RequestTable, WorkloadRequest

Statistic = Literal["mean", "p50", "p90", "p99"]
Metric = Literal["ttft", "itl", "tpot", "latency"]
# Such as `p99 ttft < 1s`.
_OBJECTIVE = re.compile(
    r"(mean|p50|p90|p99)\s+(ttft|itl|tpot|latency|e2e|e2el)\s*<=?\s*([0-9.]+)\s*(us|ms|s)"
)
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TRANSFER_SECONDS = 0.001
"""Fixed cost of a KV transfer."""


class PlanError(ValueError):
    """A plan cannot be computed; the message gives the reason."""


class Objective(Struct, frozen=True):
    """An upper limit on a statistic of the whole workload, such as `p99 ttft < 1s`.

    limit: seconds.
    """

    statistic: Statistic
    metric: Metric
    limit: float

    def read(self, report: Report) -> float:
        spread: Spread = getattr(report, self.metric)
        return getattr(spread, self.statistic)

    def is_met(self, report: Report) -> bool:
        return self.read(report) <= self.limit

    def __str__(self) -> str:
        return f"{self.statistic} {self.metric} < {self.limit * 1000:g} ms"


class FleetOption(Struct, frozen=True, kw_only=True):
    """One configuration of a replica.

    gpu: short name of the GPU.
    devices: number of devices per replica.
    price: price of one device per hour.
    prefill, decode: replicas of each kind in one unit of a disaggregated fleet; 0 and 1
        mean aggregated serving.
    link_bandwidth: bandwidth of KV transfers, in bytes per second.
    """

    gpu: str
    profile: SimulatorProfile
    devices: int
    price: float
    prefill: int = 0
    decode: int = 1
    link_bandwidth: float = 25e9

    @property
    def description(self) -> str:
        engine = self.profile.engine
        hardware = self.profile.hardware
        split = f" {self.prefill}P:{self.decode}D" if self.prefill else ""
        parallel = f"tp{hardware.tensor_parallel}" + (
            f" dp{hardware.data_parallel}" * (hardware.data_parallel > 1)
        )
        return (
            f"{self.gpu} {parallel}{split} seqs {engine.max_num_seqs} budget "
            f"{engine.max_num_batched_tokens}"
        )

    @property
    def devices_per_unit(self) -> int:
        return self.devices * (self.prefill + self.decode if self.prefill else 1)

    def build_fleet(self, units: int, routing: Routing) -> Fleet:
        if not self.prefill:
            return Fleet(profile=self.profile, replicas=units, routing=routing)
        bytes_per_token = self.profile.model.kv_bytes_per_token
        if bytes_per_token is None:
            raise PlanError(
                f"profile {self.profile.name}: model.kv_bytes_per_token is missing; KV transfers "
                f"need it"
            )
        cost = TransferCost(bytes_per_token, self.link_bandwidth, _TRANSFER_SECONDS)
        split = DisaggregationConfig(prefill=units * self.prefill, cost=cost, links="pairs")
        return Fleet(
            profile=self.profile, replicas=units * self.decode, routing=routing, split=split
        )


class PlannedFleet(Struct, frozen=True):
    """The smallest fleet of a candidate that meets the objectives, or the reason why
    there is none.

    units: replicas, or groups of prefill and decode replicas; 0 if no allowed number
        suffices.
    devices: number of devices of the fleet.
    cost_per_hour: cost of all devices, in the prices' currency.
    cost_per_million_tokens: cost per million output tokens, at the workload's output
        rate.
    joules_per_token: energy per output token at full board power; None if the device's
        power is unknown.
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
        """Sufficient fleets that no other one beats in both cost and the first
        objective's metric.
        """
        measured = sorted(
            ((fleet.cost_per_hour, self.objectives[0].read(fleet.report)), index)
            for index, fleet in enumerate(self.fleets)
            if fleet.units and fleet.report is not None
        )
        front: list[PlannedFleet] = []
        best_value = float("inf")
        for (_, value), index in measured:
            # Sorted by cost, so a fleet is on the front if its metric is better than
            # that of all cheaper ones.
            if value < best_value:
                front.append(self.fleets[index])
                best_value = value
        return tuple(front)


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse `p99 ttft < 1s, p99 itl < 50ms`. Raises PlanError."""
    objectives: list[Objective] = []
    for part in text.split(","):
        match = _OBJECTIVE.fullmatch(part.strip().lower())
        if match is None:
            raise PlanError(
                f"{part.strip()!r} is not an objective; use STATISTIC METRIC < TIME, such as `p99 "
                f"ttft < 1s`, "
                "with one of mean, p50, p90, p99; ttft, itl, tpot, latency; us, ms, s"
            )
        statistic, metric, value, unit = match.groups()
        metric = "latency" if metric.startswith("e2e") else metric
        seconds = float(value) * _UNITS[unit]
        objectives.append(
            Objective(
                msgspec.convert(statistic, Statistic), msgspec.convert(metric, Metric), seconds
            )
        )
    return tuple(objectives)


def build_candidates(
    gpus: Iterable[tuple[str, Gpu, float]],
    shapes: Iterable[ModelShape],
    *,
    tensor_parallel: Iterable[int],
    max_num_seqs: Iterable[int],
    max_num_batched_tokens: Iterable[int],
    splits: Iterable[tuple[int, int]] = ((0, 1),),
) -> tuple[list[FleetOption], list[str]]:
    """Build all possible combinations; also return why others are impossible (too
    little memory, indivisible layers).

    gpus: tuples of name, figures and price per hour.
    tensor_parallel: tensor-parallel sizes.
    max_num_seqs, max_num_batched_tokens: engine settings to try; empty for the
        profile's own.
    splits: pairs of prefill and decode replicas per unit; (0, 1) is aggregated serving.
    """
    candidates: list[FleetOption] = []
    refused: list[str] = []
    sizes = tuple(max_num_seqs)
    budgets = tuple(max_num_batched_tokens)
    layouts = tuple(splits)
    devices = tuple(tensor_parallel)
    for shape in shapes:
        for name, gpu, price in gpus:
            for tensor in devices:
                try:
                    profile = predict_profile(
                        gpu, shape, Parallelism(tensor), name=f"{name}-{shape.name}-tp{tensor}"
                    )
                except ProfileError as error:
                    refused.append(str(error))
                    continue
                for seqs in sizes or (profile.engine.max_num_seqs,):
                    for budget in budgets or (profile.engine.max_num_batched_tokens,):
                        engine = msgspec.structs.replace(
                            profile.engine, max_num_seqs=seqs, max_num_batched_tokens=budget
                        )
                        candidates += [
                            FleetOption(
                                gpu=name,
                                profile=msgspec.structs.replace(profile, engine=engine),
                                devices=tensor,
                                price=price,
                                prefill=prefill,
                                decode=decode,
                                # KV transfers leave the machine; 50 GB/s is a network
                                # of 400 Gbit/s.
                                link_bandwidth=min(gpu.link_bandwidth, 50e9),
                            )
                            for prefill, decode in layouts
                        ]
    return candidates, refused


def plan(
    candidates: Sequence[FleetOption],
    workload: Sequence[WorkloadRequest],
    objectives: tuple[Objective, ...],
    *,
    max_devices: int = 64,
    routing: Routing = "least-loaded",
    processes: int = 1,
    tick: Callable[[int], None] | None = None,
) -> Plan:
    """Find the smallest sufficient fleet of every candidate.

    max_devices: maximum devices of a fleet.
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
            results.append(_search(candidate, workload, objectives, max_devices, routing))
            if tick is not None:
                tick(len(results))
    else:
        # Spawned, since forking is unsafe if the parent has threads. Each process gets
        # the workload once.
        context = multiprocessing.get_context("spawn")
        shared = workload if isinstance(workload, RequestTable) else msgspec.json.encode(workload)
        with ProcessPoolExecutor(processes, context, _share_workload, (shared,)) as pool:
            tasks = [
                pool.submit(_search_shared, candidate, objectives, max_devices, routing)
                for candidate in candidates
            ]
            for task in as_completed(tasks):
                results.append(task.result())
                if tick is not None:
                    tick(len(results))
    fleets = sorted((fleet for fleet, _ in results), key=_rank)
    return Plan(objectives, tuple(fleets), sum(trials for _, trials in results))


def _rank(fleet: PlannedFleet) -> tuple[bool, float, int, str]:
    return not fleet.units, fleet.cost_per_hour, fleet.devices, fleet.candidate.description


def _search(
    candidate: FleetOption,
    workload: Sequence[WorkloadRequest],
    objectives: tuple[Objective, ...],
    max_devices: int,
    routing: Routing,
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
    fleet = PlannedFleet(
        candidate=candidate,
        units=high,
        devices=devices,
        cost_per_hour=per_hour,
        cost_per_million_tokens=per_hour / 3600 / report.output_token_rate * 1e6,
        joules_per_token=None if watts is None else devices * watts / report.output_token_rate,
        report=report,
    )
    return fleet, len(reports)


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
    candidate: FleetOption, objectives: tuple[Objective, ...], max_devices: int, routing: Routing
) -> tuple[PlannedFleet, int]:
    return _search(candidate, _shared_workload[0], objectives, max_devices, routing)


def render_plan(result: Plan, most: int = 10) -> str:
    """Render the result as a sentence and a table of the `most` cheapest fleets; *
    marks the Pareto front.
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
        "",
        f"{'configuration':<48}{'devices':>8}{'per hour':>10}{'per Mtok':>10}{'J/token':>9}"
        + "".join(
            f"{objective.statistic + ' ' + objective.metric:>14}" for objective in result.objectives
        ),
    ]
    front = {id(fleet) for fleet in result.pareto}
    for fleet in result.fleets[:most]:
        if fleet.report is None or not fleet.units:
            lines.append(f"  {fleet.candidate.description}: {fleet.failure}")
            continue
        joules = "-" if fleet.joules_per_token is None else f"{fleet.joules_per_token:.2f}"
        name = f"{fleet.units} x {fleet.candidate.description}"
        lines.append(
            f"{'* ' if id(fleet) in front else '  '}{name:<46}{fleet.devices:>8}{fleet.cost_per_hour:>10.2f}"
            f"{fleet.cost_per_million_tokens:>10.2f}{joules:>9}"
            + "".join(
                f"{1000 * objective.read(fleet.report):>11.1f} ms"
                for objective in result.objectives
            )
        )
    hidden = len(result.fleets) - most
    if hidden > 0:
        lines.append(f"  and {hidden} more, in the JSON output")
    return "\n".join(lines) + "\n"
