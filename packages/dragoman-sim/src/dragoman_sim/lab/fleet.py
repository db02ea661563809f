"""Simulation of a fleet of replicas behind a router, with autoscaling, and the number
of replicas that a load needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal, cast

import msgspec
import numpy as np
from msgspec import Struct

from ..engine.engine_core import EngineCore
from ..engine.hashing import TracedContents
from ..engine.latency import DraftAcceptance, StepTime, add_noise
from ..engine.offloading import OffloadingSettings
from ..engine.profile import SimulatorProfile
from ..engine.scheduler import SimulatedScheduler
from ..engine.sequence import SimulatedSequence
from .plain_replica import EXACT_VALUES, LoadTotals, PlainReplica, RequestTimes, WeightedSample
from .replay import (
    DisaggregationConfig,
    Replay,
    ReplayResult,
    ReplicaCount,
    replay,
    replay_disaggregated,
    replay_in_lock_step,
)
from .report import Report, ReportColumns, Slo, Spread, build_report
from .routing import ReplicaRouter, ReplicaState, Routing
from dragoman_check.load.workload import RequestTable, WorkloadRequest

# A faster replay of independent requests with round-robin routing. It keeps only the
# figures of a report.


def is_plain(profile: SimulatorProfile) -> bool:
    """Whether `PlainReplay` can replay this profile: each decoding sequence must
    advance by one token in every step.
    """
    config = profile.engine
    return (
        config.scheduling_policy == "fcfs"
        and not config.num_speculative_tokens
        and not config.long_prefill_token_threshold
        and not config.long_prefill_token_threshold_adaptive
        and config.max_num_seqs <= config.max_num_batched_tokens
        and not profile.noise
        and not (profile.hardware.lock_step and profile.hardware.data_parallel > 1)
    )


class PlainReplay:
    """A replay on plain replicas. After `run`, `times` has the requests' times, and
    `totals` the load.

    replicas: number of replicas.
    max_gaps: maximum number of inter-token latencies that are stored exactly, see
        `WeightedSample`.
    """

    def __init__(
        self,
        table: RequestTable,
        profile: SimulatorProfile,
        replicas: int,
        *,
        max_gaps: int = EXACT_VALUES,
    ) -> None:
        self._table = table
        self._profile = profile
        self._frontend_seconds = profile.frontend_seconds
        self.times = RequestTimes.allocate(len(table))
        self.totals = LoadTotals()
        self.gaps = WeightedSample(max_gaps)
        self._replicas = [
            PlainReplica(profile.engine, profile.latency, self.times, self.totals, self.gaps)
            for _ in range(replicas)
        ]

    def run(self, tick: Callable[[int], None] | None = None) -> None:
        """Serve all requests.

        tick: called with the number of requests that have arrived.

        Raises:
            RequestError: a request can never run.
        """
        table = self._table
        replicas = self._replicas
        frontend = self._frontend_seconds
        inputs = np.array(table.inputs)
        outputs = np.array(table.outputs)
        too_long = np.flatnonzero(inputs + outputs > self._profile.engine.max_context)
        if len(too_long):
            index = int(too_long[0])
            # `check` raises the scheduler's error.
            SimulatedScheduler(self._profile.engine).check(
                SimulatedSequence(
                    table[index].id,
                    num_prompt_tokens=int(inputs[index]),
                    max_tokens=int(outputs[index]),
                    contents=TracedContents("", (), block_size=16, traced_block_size=16),
                )
            )
        # Stable, so that simultaneous arrivals keep the workload's order, as in
        # `Replay`.
        order = np.argsort(np.array(table.arrivals), kind="stable")
        for position, index in enumerate(cast("list[int]", order.tolist())):
            number = position % len(replicas)
            replica = replicas[number]
            now = table.arrivals[index] + frontend
            replica.advance(now)
            replica.enqueue(index, table.inputs[index], table.outputs[index], now)
            self.times.replicas[index] = number
            if tick is not None:
                tick(position + 1)
        for replica in replicas:
            replica.advance(float("inf"))

    def build_report(self, slo: Slo | None = None) -> Report:
        table = self._table
        times = self.times
        totals = self.totals
        size = self._profile.engine.num_gpu_blocks - 1
        count = len(self._replicas)
        return ReportColumns(
            arrivals=np.array(table.arrivals),
            first_tokens=np.array(times.first_token),
            last_tokens=np.array(times.last_token),
            inputs=np.array(table.inputs, dtype=np.float64),
            outputs=np.array(table.outputs, dtype=np.float64),
            gaps=Spread(self.gaps.mean, *self.gaps.compute_percentiles((50, 90, 99))),
            kv_seconds=totals.used_blocks / size,
            running_seconds=totals.running,
            waiting_seconds=totals.waiting,
            kv_max=totals.most_used_blocks / size,
            preemptions=sum(times.preemptions),
            replicas=count,
            replicas_mean=count,
            replicas_max=count,
        ).build_report(slo)


# Autoscaling like Kubernetes' HorizontalPodAutoscaler. Every `interval` seconds:
# desired = ceil(replicas * metric / target), where the metric is a mean over the
# replicas; within the tolerance nothing changes. A new replica serves after
# `startup_seconds`. A replica is removed only if all desired numbers of the last
# `scale_down_window` seconds allow it; it drains: it finishes its requests, and gets no
# new ones.

ScalingMetric = Literal["waiting", "requests", "tokens", "kv"]
_TOLERANCE = 0.1
"""The default of Kubernetes' --horizontal-pod-autoscaler-tolerance."""


class AutoscalerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the autoscaler.

    metric: load per replica: `waiting` requests, running and waiting `requests`, their
        `tokens`, or the share of the KV cache in use (`kv`).
    target: value of the metric per replica.
    interval: seconds between decisions.
    startup_seconds: seconds from the decision to the first request of a new replica.
    scale_down_window: seconds for which fewer replicas must have sufficed before one is
        removed.
    """

    metric: ScalingMetric = "waiting"
    target: float
    min_replicas: int = 1
    max_replicas: int = 8
    interval: float = 15.0
    startup_seconds: float = 60.0
    scale_down_window: float = 300.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise ValueError(
                "min_replicas must be at least 1, and max_replicas at least min_replicas"
            )
        if not self.target > 0 or not self.interval > 0:
            raise ValueError("target and interval of the autoscaler must be more than 0")
        if self.startup_seconds < 0 or self.scale_down_window < 0:
            raise ValueError("times of the autoscaler must not be negative")


def replay_autoscaled(
    workload: Sequence[WorkloadRequest],
    cores: Sequence[EngineCore],
    config: AutoscalerConfig,
    *,
    router: ReplicaRouter,
    frontend_seconds: float = 0.0,
    tick: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Serve the workload with autoscaled replicas; see `replay`.

    cores: one for each of `config.max_replicas`; the first `config.min_replicas` serve
        from the start.
    """
    if len(cores) != config.max_replicas:
        raise ValueError("autoscaling needs max_replicas engines")
    scaled = _AutoscaledReplay(workload, cores, frontend_seconds, router, tick, config)
    return msgspec.structs.replace(scaled.run(None), replica_counts=tuple(scaled.counts))


_DECISION = -1
"""Event source of the autoscaler's decisions; starting replica n has the source -2 - n.
"""


class _AutoscaledReplay(Replay):
    def __init__(
        self,
        workload: Sequence[WorkloadRequest],
        cores: Sequence[EngineCore],
        frontend_seconds: float,
        router: ReplicaRouter,
        tick: Callable[[int], None] | None,
        config: AutoscalerConfig,
    ) -> None:
        super().__init__(workload, cores, frontend_seconds, router, tick)
        self._config = config
        self._serving = list(range(config.min_replicas))
        self._replicas = self._serving
        self._starting: dict[int, float] = {}
        """Time at which each starting replica begins to serve."""
        self._desired: deque[tuple[float, int]] = deque()
        begin = min(
            (request.arrival_s for request in workload if request.after is None), default=0.0
        )
        self.counts = [ReplicaCount(begin, config.min_replicas)]
        self._schedule_step_end(_DECISION, begin + config.interval)

    def _handle_due(self, source: int, now: float) -> None:
        if source >= 0:
            self._step(source, now)
            self._count(now)
        elif source == _DECISION:
            self._decide(now)
            self._schedule_step_end(_DECISION, now + self._config.interval)
        elif self._starting.get(replica := _DECISION - 1 - source, float("inf")) <= now:
            del self._starting[replica]
            self._serving.append(replica)

    def _decide(self, now: float) -> None:
        config = self._config
        with_tokens = config.metric == "tokens"
        states = [
            ReplicaState.measure(self._cores[replica], with_tokens=with_tokens)
            for replica in self._serving
        ]
        match config.metric:
            case "waiting":
                total = sum(state.waiting for state in states)
            case "requests":
                total = sum(state.requests for state in states)
            case "tokens":
                total = sum(state.tokens for state in states)
            case "kv":
                total = sum(state.kv_usage for state in states)
        ratio = total / len(states) / config.target
        present = len(self._serving) + len(self._starting)
        desired = present if abs(ratio - 1) <= _TOLERANCE else ceil(len(self._serving) * ratio)
        desired = min(max(desired, config.min_replicas), config.max_replicas)
        self._desired.append((now, desired))
        while self._desired[0][0] < now - config.scale_down_window:
            self._desired.popleft()
        # Stabilization window: scale down only to the maximum desired within it.
        most_desired = max(count for _, count in self._desired)
        if desired > present:
            # A draining replica can be started again only when it is empty.
            idle = [
                replica
                for replica, core in enumerate(self._cores)
                if replica not in self._serving
                and replica not in self._starting
                and not _is_busy(core)
            ]
            for replica in idle[: desired - present]:
                self._starting[replica] = now + config.startup_seconds
                self._schedule_step_end(_DECISION - 1 - replica, self._starting[replica])
        # Replicas that were started last are stopped first.
        for _ in range(present - most_desired):
            if self._starting:
                self._starting.popitem()
            else:
                self._serving.pop()
        self._count(now)

    def _count(self, now: float) -> None:
        """Record the number of replicas that incur cost: serving, starting and draining
        ones.
        """
        draining = sum(
            _is_busy(core)
            for replica, core in enumerate(self._cores)
            if replica not in self._serving
        )
        count = len(self._serving) + len(self._starting) + draining
        if count != self.counts[-1].replicas:
            self.counts.append(ReplicaCount(now, count))


def _is_busy(core: EngineCore) -> bool:
    return bool(core.scheduler.num_running or core.scheduler.num_waiting)


# The fleet.


class ReplicaGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """A number of replicas with the same profile."""

    profile: SimulatorProfile
    replicas: int = 1


class Fleet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replicas behind a router.

    profile: profile of the replicas.
    replicas: number of replicas with the profile; with `split`, number of decode
        replicas.
    routing: routing policy.
    others: additional replicas with other profiles; not with `split`, `autoscaler` or
        `offloading`.
    split: adds prefill replicas; None for aggregated serving.
    autoscaler: starts and stops replicas; its bounds replace `replicas`.
    state_delay: staleness of the load that the router sees, in seconds.
    offloading: a second tier of each engine's KV cache, in host memory; None without
        one.
    seed: random seed of the router, and of step times if the profile has noise.
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
            raise ValueError("a fleet needs at least 1 replica of each kind")
        if self.split is not None and self.profile.hardware.data_parallel > 1:
            raise ValueError("prefill and decode replicas have one data-parallel rank each")
        groups = (self.profile, *(group.profile for group in self.others))
        ranks = max(profile.hardware.data_parallel for profile in groups)
        if self.others and (self.split is not None or self.autoscaler is not None or ranks > 1):
            raise ValueError(
                "replicas of several profiles: not with prefill replicas, autoscaling or several "
                "ranks"
            )
        if self.autoscaler is not None and (self.split is not None or ranks > 1):
            raise ValueError("autoscaling: not with prefill replicas or several ranks")
        if self.offloading is not None and (
            self.others
            or self.split is not None
            or self.autoscaler is not None
            or (self.profile.hardware.lock_step and ranks > 1)
        ):
            raise ValueError(
                "KV offloading: not with replicas of several profiles, prefill replicas, "
                "autoscaling, or ranks that "
                "share experts"
            )
        if len({profile.engine.block_size for profile in groups}) > 1:
            raise ValueError(
                "all replicas must have the same block size, since the router compares cached "
                "prefixes"
            )

    @property
    def description(self) -> str:
        if self.autoscaler is not None:
            scaler = self.autoscaler
            return (
                f"{scaler.min_replicas} to {scaler.max_replicas} replicas by "
                f"{scaler.metric}:{scaler.target:g}, "
                f"{self.routing}"
            )
        if self.others:
            groups = (ReplicaGroup(self.profile, self.replicas), *self.others)
            parts = " and ".join(f"{group.replicas} x {group.profile.name}" for group in groups)
            return f"{parts}, {self.routing}"
        if self.split is not None:
            return (
                f"{self.split.prefill} prefill and {self.replicas} decode replicas, {self.routing}"
            )
        return "1 replica" if self.replicas == 1 else f"{self.replicas} replicas, {self.routing}"

    def serve(
        self, workload: Sequence[WorkloadRequest], *, tick: Callable[[int], None] | None = None
    ) -> ReplayResult:
        """Serve the whole workload, starting with empty caches.

        Raises:
            RequestError: a request can never run.
        """
        frontend = self.profile.frontend_seconds
        hardware = self.profile.hardware
        if self.autoscaler is not None:
            cores = self._build_cores(self.autoscaler.max_replicas)
            router = self._build_router()
            return replay_autoscaled(
                workload,
                cores,
                self.autoscaler,
                router=router,
                frontend_seconds=frontend,
                tick=tick,
            )
        if self.split is None:
            # The router sees every rank: vLLM's own balancer of data-parallel ranks
            # does the same as `least-loaded`.
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
            return replay(
                workload, cores, frontend_seconds=frontend, router=self._build_router(), tick=tick
            )
        cores = self._build_cores(self.split.prefill + self.replicas)
        routers = (self._build_router(), self._build_router())
        return replay_disaggregated(
            workload, cores, self.split, routers=routers, frontend_seconds=frontend, tick=tick
        )

    def build_report(
        self,
        workload: Sequence[WorkloadRequest],
        slo: Slo | None = None,
        *,
        tick: Callable[[int], None] | None = None,
    ) -> Report:
        """Serve the workload and build its report.

        Independent requests on independent replicas use `PlainReplay`, which is faster
        and logs no steps.

        Raises:
            RequestError: a request can never run.
        """
        is_divided = (
            self.replicas * self.profile.hardware.data_parallel == 1
            or self.routing == "round-robin"
        )
        is_fixed = (
            not self.others
            and self.split is None
            and self.autoscaler is None
            and self.offloading is None
        )
        table = (
            RequestTable.convert(workload)
            if is_divided and is_fixed and is_plain(self.profile)
            else None
        )
        if table is None:
            return build_report(self.serve(workload, tick=tick), slo)
        plain = PlainReplay(
            table, self.profile, self.replicas * self.profile.hardware.data_parallel
        )
        plain.run(tick)
        return plain.build_report(slo)

    def _build_router(self) -> ReplicaRouter:
        return ReplicaRouter(self.routing, state_delay=self.state_delay, seed=self.seed)

    def _build_cores(self, count: int) -> list[EngineCore]:
        profiles = [self.profile] * count
        for group in self.others:
            profiles += [group.profile] * group.replicas
        offloading = self.offloading
        block_size = self.profile.engine.block_size
        config = None if offloading is None else offloading.build_config(block_size)
        cores: list[EngineCore] = []
        for index, profile in enumerate(profiles):
            step_time: StepTime = profile.latency.compute_seconds
            if profile.noise:
                step_time = add_noise(
                    step_time, profile.noise, np.random.default_rng((self.seed, index))
                )
            cores.append(
                EngineCore(
                    SimulatedScheduler(profile.engine, offloading=config),
                    step_time,
                    DraftAcceptance(profile.acceptance_rates, self.seed).count_sampled,
                    None if offloading is None else offloading.build_link(block_size),
                )
            )
        return cores


# The number of replicas that meets an SLO.


class Trial(Struct, frozen=True):
    """One simulated fleet size.

    replicas: number of replicas.
    share: share of the requests that meet the SLO, 0 to 1.
    report: report of the run.
    """

    replicas: int
    share: float
    report: Report


class Sweep(Struct, frozen=True):
    """The result of a sweep over fleet sizes.

    wanted: share of the requests that must meet the SLO, 0 to 1.
    trials: simulated sizes, in ascending order of replicas.
    enough: minimum sufficient number of replicas; None if even the maximum is too few.
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
    """Find the smallest number of replicas with which `target_share` of the requests
    meets the SLO.

    The search doubles the number, then bisects; it assumes that more replicas are never
    worse.

    tick: called with the number of trials done.
    """
    if not 0 < target_share <= 1:
        raise ValueError("target_share must be more than 0 and at most 1")
    trials: dict[int, Trial] = {}

    def meets_slo(replicas: int) -> bool:
        candidate = msgspec.structs.replace(fleet, replicas=replicas)
        result = candidate.build_report(workload, slo)
        trials[replicas] = Trial(replicas, (result.good or 0) / result.requests, result)
        if tick is not None:
            tick(len(trials))
        return trials[replicas].share >= target_share

    low = 0
    high = 1
    while not meets_slo(high):
        if high == max_replicas:
            return Sweep(target_share, _sort_trials(trials), None)
        low = high
        high = min(2 * high, max_replicas)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets_slo(middle) else (middle, high)
    return Sweep(target_share, _sort_trials(trials), high)


def _sort_trials(trials: dict[int, Trial]) -> tuple[Trial, ...]:
    return tuple(trials[replicas] for replicas in sorted(trials))


def render_sweep(result: Sweep) -> str:
    """Render the result as a sentence, followed by a table of all trials."""
    if result.enough is None:
        largest = result.trials[-1]
        summary = (
            f"{largest.replicas} replicas are not enough: {largest.share:.2%} of the "
            f"requests meet the SLO"
        )
    else:
        plural = "replica is" if result.enough == 1 else "replicas are"
        share = next(trial.share for trial in result.trials if trial.replicas == result.enough)
        summary = f"{result.enough} {plural} enough: {share:.2%} of the requests meet the SLO"
    lines = [
        f"{summary} (target {result.wanted:.1%}).",
        "",
        f"{'replicas':>8}{'meet the SLO':>14}{'goodput/s':>11}",
    ]
    lines[-1] += f"{'TTFT p99 ms':>13}{'TPOT p99 ms':>13}{'KV cache':>10}"
    for trial in result.trials:
        metrics = trial.report
        lines.append(
            f"{trial.replicas:>8}{trial.share:>14.2%}{metrics.goodput or 0:>11.2f}{1000 * metrics.ttft.p99:>13.1f}"
            f"{1000 * metrics.tpot.p99:>13.1f}{metrics.kv_usage_mean:>10.1%}"
        )
    return "\n".join(lines) + "\n"
