"""Autoscaling of replicas like Kubernetes' HorizontalPodAutoscaler.

Every `interval` seconds: desired = ceil(replicas * metric / target), where the metric
is a mean over the replicas; within the tolerance nothing changes. A new replica serves
after `startup_seconds`. A replica is removed only if all desired numbers of the last
`scale_down_window` seconds allow it; it drains: it finishes its requests, and gets no
new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman_check.load.workload import WorkloadRequest

from ..engine.engine_core import EngineCore
from .replay import Replay
from .replay_result import ReplayResult, ReplicaCount
from .replica_router import ReplicaRouter, ReplicaState

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
