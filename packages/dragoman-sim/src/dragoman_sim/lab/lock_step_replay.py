"""Data-parallel ranks in lock-step: if they share experts, every layer waits for the
slowest rank.

All ranks begin and end each step together; a rank without requests runs a dummy step
(vllm/v1/engine/core.py, DPEngineCoreProc). The ranks of dense models are independent
replicas instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from dragoman_check.load.workload import WorkloadRequest

from ..engine.engine_core import EngineCore, LaunchedSteps, StepOutcome
from ..engine.latency import StepLoad
from .replay import Replay
from .replay_result import ReplayResult
from .replica_router import ReplicaRouter


class LockStepRanks:
    """The ranks of one server, which step together."""

    def __init__(self, cores: Sequence[EngineCore]) -> None:
        self.cores = cores
        self._slowest_loads: deque[StepLoad] = deque()
        """Load of the slowest rank, for each step in flight."""
        self.ended_load: StepLoad | None = None
        """Load of the slowest rank, which determines the duration, of the step that
        ended last.
        """

    @property
    def next_step_end(self) -> float | None:
        """Time at which the running step ends on every rank; None if no step runs."""
        return self.cores[0].next_step_end

    def step(self, now: float) -> list[StepOutcome]:
        """End the oldest step if it is due by `now`, then launch new steps. Return an
        outcome per rank.
        """
        ended = [core.complete(now) for core in self.cores]
        self.ended_load = self._slowest_loads.popleft() if ended[0].began is not None else None
        launched = [LaunchedSteps([], [], []) for _ in self.cores]
        at = ended[0].at
        while self.cores[0].can_launch:
            steps = [core.scheduler.schedule() for core in self.cores]
            for launch, step in zip(launched, steps, strict=True):
                launch.admitted.extend(step.admitted)
                launch.preempted.extend(step.preempted)
                launch.fetching.extend(step.fetching)
            if any(step.num_tokens for step in steps):
                # The experts serve all ranks together; the others wait for the slowest
                # rank's attention.
                expert_tokens = sum(step.num_tokens for step in steps) / len(steps)
                seconds = 0.0
                slowest = steps[0].load
                for core, step in zip(self.cores, steps, strict=True):
                    load = msgspec.structs.replace(step.load, expert_tokens=expert_tokens)
                    if (rank_seconds := core.compute_seconds(load)) > seconds:
                        seconds = rank_seconds
                        slowest = load
                self._slowest_loads.append(slowest)
                for core, step in zip(self.cores, steps, strict=True):
                    core.begin(step, at, seconds)
            # As in `EngineCore.launch`: another attempt helps only if a preemption has
            # freed blocks.
            elif self.next_step_end is not None or not any(step.preempted for step in steps):
                break
        return [
            StepOutcome(end.at, end.began, end.load, end.sampled, end.finished, *launch)
            for end, launch in zip(ended, launched, strict=True)
        ]


def replay_in_lock_step(
    workload: Sequence[WorkloadRequest],
    cores: Sequence[EngineCore],
    ranks: int,
    *,
    router: ReplicaRouter,
    frontend_seconds: float = 0.0,
    until: frozenset[str] | None = None,
    tick: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Serve the workload on servers of several ranks in lock-step; see `replay`.

    The log of each rank has the load of the server's slowest rank, which determines the
    durations of steps.

    ranks: ranks per server; this many consecutive cores form a server.
    """
    return _LockStepReplay(workload, cores, ranks, frontend_seconds, router, tick).run(until)


class _LockStepReplay(Replay):
    """A replay on servers of several ranks. The source of an event is the server's
    first rank.
    """

    def __init__(
        self,
        workload: Sequence[WorkloadRequest],
        cores: Sequence[EngineCore],
        ranks: int,
        frontend_seconds: float,
        router: ReplicaRouter,
        tick: Callable[[int], None] | None,
    ) -> None:
        super().__init__(workload, cores, frontend_seconds, router, tick)
        self._ranks = ranks
        self._servers = [
            LockStepRanks(cores[first : first + ranks]) for first in range(0, len(cores), ranks)
        ]

    def _step(self, replica: int, now: float) -> StepOutcome:
        first = replica - replica % self._ranks
        server = self._servers[first // self._ranks]
        due = server.next_step_end
        if due is not None and due > now:
            return StepOutcome(
                now
            )  # Two idle ranks got requests at the same time; the first has begun the step.
        outcomes = server.step(now)
        for rank, outcome in enumerate(outcomes, start=first):
            if outcome.load is None:
                self._handle_outcome(rank, outcome)
            else:
                self._handle_outcome(rank, msgspec.structs.replace(outcome, load=server.ended_load))
        self._schedule_step_end(first, server.next_step_end)
        return outcomes[replica - first]
