"""Replays of a workload on servers whose data-parallel ranks step together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from dragoman_check.load.workload import WorkloadRequest

from ..engine.engine_core import EngineCore, StepOutcome
from ..engine.lock_step import LockStepRanks
from .replay import Replay
from .replay_result import ReplayResult
from .replica_router import ReplicaRouter


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
