"""Data-parallel ranks in lock-step: if they share experts, every layer waits for the
slowest rank.

All ranks begin and end each step together; a rank without requests runs a dummy step
(vllm/v1/engine/core.py, DPEngineCoreProc). The ranks of dense models are independent
replicas instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from .engine_core import EngineCore, LaunchedSteps, StepOutcome, build_outcome
from .latency import StepLoad


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
        self._record_end(ended)
        return list(map(build_outcome, ended, self.launch(ended[0].at)))

    def commit(self, now: float) -> list[StepOutcome]:
        """End the oldest step if it is due, for drivers that end the sequences
        themselves, as `EngineCore.commit`. Return an outcome per rank.
        """
        ended = [core.commit(now) for core in self.cores]
        self._record_end(ended)
        return ended

    def _record_end(self, ended: Sequence[StepOutcome]) -> None:
        self.ended_load = self._slowest_loads.popleft() if ended[0].began is not None else None

    def launch(self, at: float) -> list[LaunchedSteps]:
        """Launch new steps up to the limit of steps in flight. Return what was launched
        per rank.
        """
        launched = [LaunchedSteps() for _ in self.cores]
        while self.cores[0].can_launch:
            steps = [core.scheduler.schedule() for core in self.cores]
            launched = [launch.add(step) for launch, step in zip(launched, steps, strict=True)]
            if any(step.num_tokens for step in steps):
                # The experts serve all ranks together; the others wait for the slowest
                # rank's attention.
                expert_tokens = sum(step.num_tokens for step in steps) / len(steps)
                seconds = 0.0
                loads = [step.load for step in steps]
                slowest = loads[0]
                for core, own in zip(self.cores, loads, strict=True):
                    load = msgspec.structs.replace(own, expert_tokens=expert_tokens)
                    if (rank_seconds := core.compute_seconds(load)) > seconds:
                        seconds = rank_seconds
                        slowest = load
                self._slowest_loads.append(slowest)
                for core, step, own in zip(self.cores, steps, loads, strict=True):
                    core.begin(step, own, at, seconds)
            # As in `EngineCore.launch`: another attempt helps only if a preemption has
            # freed blocks.
            elif self.next_step_end is not None or not any(step.preempted for step in steps):
                break
        return launched
