"""A simulated fleet of replicas behind a router."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from dragoman_check.load.load_statistics import Slo
from dragoman_check.load.request_table import RequestTable
from dragoman_check.load.workload import WorkloadRequest

from ..engine.engine_core import EngineCore
from ..engine.latency import StepTime, add_noise
from ..engine.offloading_settings import OffloadingSettings
from ..engine.profile import SimulatorProfile
from ..engine.scheduler import SimulatedScheduler
from ..engine.speculative_decoding import DraftAcceptance
from .autoscaling import AutoscalerConfig, replay_autoscaled
from .disaggregated_replay import DisaggregationConfig, replay_disaggregated
from .lock_step_replay import replay_in_lock_step
from .plain_replay import PlainReplay, is_plain
from .replay import replay
from .replay_result import ReplayResult
from .replica_router import ReplicaRouter, Routing
from .simulation_report import Report, build_report


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
        if any(profile.engine.kv_cache_groups for profile in groups) and (
            self.split is not None or self.offloading is not None
        ):
            raise ValueError(
                "prefill replicas and KV offloading: not with several KV cache groups; add "
                "--disable-hybrid-kv-cache-manager"
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
