"""One simulated vLLM: steps one after the other, when each of them ends, and who got a token then.

Sans-I/O: a driver hands in requests and the time, and waits until `due` by whatever clock it has. All times are
absolute deadlines on that clock, so a driver that wakes up late does not shift what follows.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import Struct

from .latency import StepLoad, StepTime
from .scheduler import RemoteFetch, SchedulerOutput, SimulatedScheduler
from .sequence import SimulatedSequence


class StepOutcome(Struct, frozen=True):
    """What a call of `step` brought about.

    at: when the step that ended did so, else the time given. began, load: of that step; None if none ended.
    sampled: everyone who got a token at `at`. finished: those among them that had their last.
    admitted: who left the queue now, for a step that comes. preempted: who went back into it. fetching: who left it to
    wait for another instance; call `scheduler.fetched` or `fetch_failed` when that has answered.
    """

    at: float
    began: float | None = None
    load: StepLoad | None = None
    sampled: list[SimulatedSequence] = []
    finished: list[SimulatedSequence] = []
    admitted: list[SimulatedSequence] = []
    preempted: list[SimulatedSequence] = []
    fetching: list[RemoteFetch] = []


class LaunchedSteps(NamedTuple):
    """See `Outcome`."""

    admitted: list[SimulatedSequence]
    preempted: list[SimulatedSequence]
    fetching: list[RemoteFetch]


class _InFlightStep(Struct, frozen=True):
    step: SchedulerOutput
    load: StepLoad
    begins: float
    ends: float


class EngineCore:
    """A scheduler whose steps take time. With asynchronous scheduling the next step is made while one still runs."""

    def __init__(self, scheduler: SimulatedScheduler, step_time: StepTime) -> None:
        self.scheduler = scheduler
        self.num_steps = 0
        self._step_time = step_time
        self._in_flight: deque[_InFlightStep] = deque()
        self._max_in_flight = 2 if scheduler.config.async_scheduling else 1

    @property
    def next_step_end(self) -> float | None:
        """When the step that runs ends; None if nothing runs."""
        return self._in_flight[0].ends if self._in_flight else None

    def add(self, sequence: SimulatedSequence) -> None:
        """Queue a sequence. It is looked at when a step ends; if nothing runs, call `step` at once.

        Raises RequestError if it can never run.
        """
        self.scheduler.add(sequence)

    def abort(self, sequence: SimulatedSequence) -> None:
        """Its blocks are free at once, and it gets no more tokens."""
        self.scheduler.finish(sequence)

    def step(self, now: float) -> StepOutcome:
        """End the oldest step if it is due by `now`, then begin what can begin.

        Call it at `due` with exactly that time, or at the time of an arrival when nothing runs. For those who know
        beforehand what will be sampled and when it ends; others call `commit`, append to the contents what was
        sampled, abort what its content ends, and call `launch`.
        """
        outcome = self.commit(now)
        return StepOutcome(
            outcome.at, outcome.began, outcome.load, outcome.sampled, outcome.finished, *self.launch(outcome.at)
        )

    def commit(self, now: float) -> StepOutcome:
        """The first half of `step`: end the oldest step if it is due. Aborts that follow free blocks for the next."""
        if not self._in_flight or self._in_flight[0].ends > now:
            return StepOutcome(now)
        flight = self._in_flight.popleft()
        sampled, finished = self.scheduler.update(flight.step)
        return StepOutcome(flight.ends, flight.begins, flight.load, sampled, finished)

    def launch(self, now: float) -> LaunchedSteps:
        """The second half of `step`: begin steps as far as the rules allow."""
        launched = LaunchedSteps([], [], [])
        while len(self._in_flight) < self._max_in_flight:
            step = self.scheduler.schedule()
            launched.admitted.extend(step.admitted)
            launched.preempted.extend(step.preempted)
            launched.fetching.extend(step.fetching)
            if step.num_tokens:
                self._begin(step, now)
            elif self._in_flight or not step.preempted:
                break
        return launched

    def _begin(self, step: SchedulerOutput, now: float) -> None:
        load = step.load
        begins = self._in_flight[-1].ends if self._in_flight else now
        self._in_flight.append(_InFlightStep(step, load, begins, begins + self._step_time(load)))
        self.num_steps += 1
