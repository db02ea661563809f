"""Several replicas of one profile behind a router, on a virtual clock; and how many of them a load needs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from .disaggregated_replay import DisaggregationConfig, replay_disaggregated
from .engine_core import EngineCore
from .latency import StepTime, add_noise
from .lock_step import replay_in_lock_step
from .profile import SimulatorProfile
from .replay import ReplayResult, replay
from .report import Report, Slo, build_report
from .routing import Route, build_least_loaded, build_prefix_aware, build_round_robin
from .scheduler import SimulatedScheduler
from .workload import WorkloadRequest

Routing = Literal["round-robin", "least-loaded", "prefix-aware"]


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas of one profile behind a router.

    replicas: number of engines; with `split`, of decode engines only.
    split: adds prefill engines; None for aggregated serving.
    seed: of the steps' random factors, if the profile has noise.
    """

    profile: SimulatorProfile
    replicas: int = 1
    routing: Routing = "round-robin"
    split: DisaggregationConfig | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1 or (self.split is not None and self.split.prefill < 1):
            raise ValueError("a fleet has at least 1 replica of each kind")
        if self.split is not None and self.profile.hardware.data_parallel > 1:
            raise ValueError("prefill and decode replicas have one data-parallel rank each")

    @property
    def description(self) -> str:
        if self.split is not None:
            return f"{self.split.prefill} prefill and {self.replicas} decode replicas, {self.routing}"
        return "1 replica" if self.replicas == 1 else f"{self.replicas} replicas, {self.routing}"

    def serve(self, workload: Sequence[WorkloadRequest], *, tick: Callable[[int], None] | None = None) -> ReplayResult:
        """The whole workload, with empty caches at first. Raises RequestError for what can never run."""
        frontend, routing, hardware = self.profile.frontend_seconds, self.routing, self.profile.hardware
        if self.split is None:
            # The router sees every rank: vLLM's own balancer of a server's ranks weighs them as `least-loaded` does.
            cores = self._build_cores(self.replicas * hardware.data_parallel)
            if hardware.lock_step and hardware.data_parallel > 1:
                return replay_in_lock_step(
                    workload,
                    cores,
                    hardware.data_parallel,
                    route=_build_route(routing),
                    frontend_seconds=frontend,
                    tick=tick,
                )
            return replay(workload, cores, frontend_seconds=frontend, route=_build_route(routing), tick=tick)
        cores = self._build_cores(self.split.prefill + self.replicas)
        routes = (_build_route(routing), _build_route(routing))
        return replay_disaggregated(workload, cores, self.split, routes=routes, frontend_seconds=frontend, tick=tick)

    def _build_cores(self, count: int) -> list[EngineCore]:
        return [
            EngineCore(SimulatedScheduler(self.profile.engine), self._build_step_time(index)) for index in range(count)
        ]

    def _build_step_time(self, replica: int) -> StepTime:
        exact = self.profile.latency.compute_seconds
        if not self.profile.noise:
            return exact
        return add_noise(exact, self.profile.noise, np.random.default_rng((self.seed, replica)))


def _build_route(routing: Routing) -> Route:
    match routing:
        case "round-robin":
            return build_round_robin()
        case "least-loaded":
            return build_least_loaded()
        case "prefix-aware":
            return build_prefix_aware()


class Trial(Struct, frozen=True):
    """One simulated fleet size. share: of the requests that meet the SLO, 0 to 1."""

    replicas: int
    share: float
    report: Report


class Sweep(Struct, frozen=True):
    """The result of a sweep over fleet sizes.

    wanted: share of the requests that must meet the SLO.
    trials: in ascending order of replicas.
    enough: the fewest sufficient replicas; None if the maximum is too few.
    """

    wanted: float
    trials: tuple[Trial, ...]
    enough: int | None


def sweep(
    fleet: Fleet,
    workload: Sequence[WorkloadRequest],
    slo: Slo,
    *,
    target_share: float = 0.99,
    max_replicas: int = 64,
    tick: Callable[[int], None] | None = None,
) -> Sweep:
    """Find the fewest replicas with which `target_share` of the requests meets the SLO: doubling, then bisecting.

    Assumes that more replicas are no worse. tick: called with the number of trials done.
    """
    if not 0 < target_share <= 1:
        raise ValueError("the wanted share must be more than 0 and at most 1")
    trials: dict[int, Trial] = {}

    def meets_slo(replicas: int) -> bool:
        trials[replicas] = _run_trial(fleet, replicas, workload, slo)
        if tick is not None:
            tick(len(trials))
        return trials[replicas].share >= target_share

    low, high = 0, 1
    while not meets_slo(high):
        if high == max_replicas:
            return Sweep(target_share, _sort_trials(trials), None)
        low, high = high, min(2 * high, max_replicas)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets_slo(middle) else (middle, high)
    return Sweep(target_share, _sort_trials(trials), high)


def _run_trial(fleet: Fleet, replicas: int, workload: Sequence[WorkloadRequest], slo: Slo) -> Trial:
    candidate = msgspec.structs.replace(fleet, replicas=replicas)
    result = build_report(candidate.serve(workload), slo)
    return Trial(replicas, (result.good or 0) / result.requests, result)


def _sort_trials(trials: dict[int, Trial]) -> tuple[Trial, ...]:
    return tuple(trials[replicas] for replicas in sorted(trials))


def render_sweep(result: Sweep) -> str:
    """In a sentence, and the figures behind it."""
    if result.enough is None:
        largest = result.trials[-1]
        summary = f"{largest.replicas} replicas are not enough: {largest.share:.2%} of the requests meet the SLO"
    else:
        plural = "replica is" if result.enough == 1 else "replicas are"
        share = next(trial.share for trial in result.trials if trial.replicas == result.enough)
        summary = f"{result.enough} {plural} enough: {share:.2%} of the requests meet the SLO"
    lines = [f"{summary} (target {result.wanted:.1%}).", "", f"{'replicas':>8}{'meet the SLO':>14}{'goodput/s':>11}"]
    lines[-1] += f"{'TTFT p99 ms':>13}{'TPOT p99 ms':>13}{'KV cache':>10}"
    for trial in result.trials:
        metrics = trial.report
        lines.append(
            f"{trial.replicas:>8}{trial.share:>14.2%}{metrics.goodput or 0:>11.2f}{1000 * metrics.ttft.p99:>13.1f}"
            f"{1000 * metrics.tpot.p99:>13.1f}{metrics.kv_usage_mean:>10.1%}"
        )
    return "\n".join(lines) + "\n"
