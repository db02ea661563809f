"""Runs the steps of ranks in real time: one rank, or all ranks of a server that step
together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .engine_core import EngineCore, LaunchedSteps, StepOutcome
from .lock_step import LockStepRanks

CallAt = Callable[[float, Callable[[float], None]], None]
"""Schedules a callback at a time. The callback gets that time, even if it runs late."""


class SteppedRank(Protocol):
    """A rank whose steps a driver runs."""

    core: EngineCore

    def end_step(self, outcome: StepOutcome) -> None:
        """Deliver the tokens of a step that has ended."""
        ...

    def handle_launch(self, launched: LaunchedSteps, at: float) -> None:
        """Report what left the queue for steps that were launched at a time."""
        ...


class StepDriver:
    """The driver of one rank, or of ranks in lock-step.

    ranks: the ranks; several begin and end each step together.
    call_at: schedules callbacks on the ranks' clock.
    """

    def __init__(self, ranks: Sequence[SteppedRank], call_at: CallAt) -> None:
        self._ranks = ranks
        self._call_at = call_at
        self._core = ranks[0].core
        self._lock_step = LockStepRanks([rank.core for rank in ranks]) if len(ranks) > 1 else None
        self._tick_at: float | None = None
        """The time for which `tick` is scheduled."""
        self._last_step_end = 0.0

    def launch_if_idle(self, at: float) -> None:
        """Launch a step if none is running. at: may be in the past, if the loop runs
        late.
        """
        if self._core.next_step_end is None:
            # With a late loop this may be before the end of the last step, and steps
            # must not overlap.
            self._launch(max(at, self._last_step_end))

    def tick(self, at: float) -> None:
        """End the step due at this time and deliver all of its tokens together."""
        if self._core.host_link is not None and at != self._tick_at:
            # Outdated: scheduled for the end of a transfer, which the end of the
            #     running step handles.
            return
        self._tick_at = None
        if self._lock_step is None:
            outcome = self._core.commit(at)
            self._ranks[0].end_step(outcome)
        else:
            outcomes = self._lock_step.commit(at)
            outcome = outcomes[0]
            for rank, each in zip(self._ranks, outcomes, strict=True):
                rank.end_step(each)
        self._last_step_end = outcome.at
        self._launch(outcome.at)

    def _launch(self, at: float) -> None:
        if self._lock_step is None:
            self._ranks[0].handle_launch(self._core.launch(at), at)
        else:
            for rank, launched in zip(self._ranks, self._lock_step.launch(at), strict=True):
                rank.handle_launch(launched, at)
        core = self._core
        due = core.next_step_end if core.host_link is None else core.next_due
        if due is not None and due != self._tick_at:
            self._tick_at = due
            self._call_at(due, self.tick)
