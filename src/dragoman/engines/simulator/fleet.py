"""Several replicas of one profile behind a router, on a virtual clock; and how many of them a load needs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec import Struct

from .autoscaling import AutoscalerConfig, replay_autoscaled
from .disaggregated_replay import DisaggregationConfig, replay_disaggregated
from .engine_core import EngineCore
from .host_link import OffloadingSettings
from .latency import StepTime, add_noise
from .lock_step import replay_in_lock_step
from .plain_replay import PlainReplay, is_plain
from .profile import SimulatorProfile
from .replay import ReplayResult, replay
from .report import Report, Slo, build_report
from .routing import ReplicaRouter, Routing
from .scheduler import SimulatedScheduler
from .speculation import DraftAcceptance
from .workload import RequestTable, WorkloadRequest


class ReplicaGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """So many replicas of a profile."""

    profile: SimulatorProfile
    replicas: int = 1


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas behind a router.

    replicas: number of engines of the profile; with `split`, of decode engines only.
    others: replicas of other profiles beside them; None of the options below goes with it.
    split: adds prefill engines; None for aggregated serving.
    autoscaler: starts and stops replicas; `replicas` is the number at the start.
    state_delay: age in seconds of the load that the router knows.
    offloading: a second tier of each engine's KV cache, in host memory.
    seed: of the steps' random factors, if the profile has noise, and of the router.
    """

    profile: SimulatorProfile
    replicas: int = 1
    routing: Routing = "round-robin"
    others: tuple[ReplicaGroup, ...] = ()
    split: DisaggregationConfig | None = None
    autoscaler: AutoscalerConfig | None = None
    state_delay: float = 0.0
    offloading: OffloadingSettings | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicas < 1 or (self.split is not None and self.split.prefill < 1):
            raise ValueError("a fleet has at least 1 replica of each kind")
        if self.split is not None and self.profile.hardware.data_parallel > 1:
            raise ValueError("prefill and decode replicas have one data-parallel rank each")
        groups = (self.profile, *(group.profile for group in self.others))
        ranks = max(profile.hardware.data_parallel for profile in groups)
        if self.others and (self.split is not None or self.autoscaler is not None or ranks > 1):
            raise ValueError("replicas of several profiles: not with prefill replicas, autoscaling or several ranks")
        if self.autoscaler is not None and (self.split is not None or ranks > 1):
            raise ValueError("autoscaling: not with prefill replicas or several ranks")
        if self.offloading is not None and (
            self.others
            or self.split is not None
            or self.autoscaler is not None
            or (self.profile.hardware.lock_step and ranks > 1)
        ):
            raise ValueError(
                "KV offloading: not with replicas of several profiles, prefill replicas, autoscaling, or ranks that "
                "share experts"
            )
        if len({profile.engine.block_size for profile in groups}) > 1:
            raise ValueError("all replicas must have the same block size, since the router compares cached prefixes")

    @property
    def description(self) -> str:
        if self.autoscaler is not None:
            scaler = self.autoscaler
            return (
                f"{scaler.min_replicas} to {scaler.max_replicas} replicas by {scaler.metric}:{scaler.target:g}, "
                f"{self.routing}"
            )
        if self.others:
            groups = (ReplicaGroup(self.profile, self.replicas), *self.others)
            parts = " and ".join(f"{group.replicas} x {group.profile.name}" for group in groups)
            return f"{parts}, {self.routing}"
        if self.split is not None:
            return f"{self.split.prefill} prefill and {self.replicas} decode replicas, {self.routing}"
        return "1 replica" if self.replicas == 1 else f"{self.replicas} replicas, {self.routing}"

    def serve(self, workload: Sequence[WorkloadRequest], *, tick: Callable[[int], None] | None = None) -> ReplayResult:
        """The whole workload, with empty caches at first. Raises RequestError for what can never run."""
        frontend, hardware = self.profile.frontend_seconds, self.profile.hardware
        if self.autoscaler is not None:
            cores = self._build_cores(self.autoscaler.max_replicas)
            router = self._build_router()
            return replay_autoscaled(
                workload, cores, self.autoscaler, router=router, frontend_seconds=frontend, tick=tick
            )
        if self.split is None:
            # The router sees every rank: vLLM's own balancer of a server's ranks weighs them as `least-loaded` does.
            cores = self._build_cores(self.replicas * hardware.data_parallel)
            if hardware.lock_step and hardware.data_parallel > 1:
                return replay_in_lock_step(
                    workload,
                    cores,
                    hardware.data_parallel,
                    router=self._build_router(),
                    frontend_seconds=frontend,
                    tick=tick,
                )
            return replay(workload, cores, frontend_seconds=frontend, router=self._build_router(), tick=tick)
        cores = self._build_cores(self.split.prefill + self.replicas)
        routers = (self._build_router(), self._build_router())
        return replay_disaggregated(workload, cores, self.split, routers=routers, frontend_seconds=frontend, tick=tick)

    def build_report(
        self,
        workload: Sequence[WorkloadRequest],
        slo: Slo | None = None,
        *,
        tick: Callable[[int], None] | None = None,
    ) -> Report:
        """The report of `serve`, without a log of every step and in less time where that is possible: for independent
        requests and replicas. Raises RequestError for what can never run."""
        is_divided = self.replicas * self.profile.hardware.data_parallel == 1 or self.routing == "round-robin"
        is_fixed = not self.others and self.split is None and self.autoscaler is None and self.offloading is None
        table = RequestTable.convert(workload) if is_divided and is_fixed and is_plain(self.profile) else None
        if table is None:
            return build_report(self.serve(workload, tick=tick), slo)
        plain = PlainReplay(table, self.profile, self.replicas * self.profile.hardware.data_parallel)
        plain.run(tick)
        return plain.build_report(slo)

    def _build_router(self) -> ReplicaRouter:
        return ReplicaRouter(self.routing, state_delay=self.state_delay, seed=self.seed)

    def _build_cores(self, count: int) -> list[EngineCore]:
        profiles = [self.profile] * count
        for group in self.others:
            profiles += [group.profile] * group.replicas
        offloading, block_size = self.offloading, self.profile.engine.block_size
        config = None if offloading is None else offloading.build_config(block_size)
        return [
            EngineCore(
                SimulatedScheduler(profile.engine, offloading=config),
                self._build_step_time(profile, index),
                DraftAcceptance(profile.acceptance_rates, self.seed).count_sampled,
                None if offloading is None else offloading.build_link(block_size),
            )
            for index, profile in enumerate(profiles)
        ]

    def _build_step_time(self, profile: SimulatorProfile, replica: int) -> StepTime:
        exact = profile.latency.compute_seconds
        if not profile.noise:
            return exact
        return add_noise(exact, profile.noise, np.random.default_rng((self.seed, replica)))


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
        candidate = msgspec.structs.replace(fleet, replicas=replicas)
        result = candidate.build_report(workload, slo)
        trials[replicas] = Trial(replicas, (result.good or 0) / result.requests, result)
        if tick is not None:
            tick(len(trials))
        return trials[replicas].share >= target_share

    low, high = 0, 1
    # More replicas never meet it less often, up to noise, so doubling and bisecting find the smallest number.
    while not meets_slo(high):
        if high == max_replicas:
            return Sweep(target_share, _sort_trials(trials), None)
        low, high = high, min(2 * high, max_replicas)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets_slo(middle) else (middle, high)
    return Sweep(target_share, _sort_trials(trials), high)


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
