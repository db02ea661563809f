"""One simulated vLLM engine core: consecutive steps, their ends, and the sequences that got a token.

Sans-I/O: a driver passes in requests and the time, and waits until `next_step_end` on its own clock. All times are
absolute deadlines on that clock, so a late wake-up does not shift what follows.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import Struct

from .latency import StepLoad, StepTime
from .offloading import HostLink
from .scheduler import CountSampled, RemoteFetch, SchedulerOutput, SimulatedScheduler
from .sequence import SimulatedSequence


class StepOutcome(Struct, frozen=True):
    """The result of a call of `step`.

    at: when the completed step ended, else the time passed in.
    began, load: of that step; None if none ended.
    sampled: sequences that got a token at `at`, or with speculative decoding `num_sampled` tokens.
    finished: those of them that got their last token.
    admitted: left the queue for a coming step.
    preempted: went back into the queue.
    fetching: left the queue to wait for another instance; call `scheduler.complete_fetch` or `fail_fetch` when it
        responds.
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
    """The scheduling part of a `StepOutcome`."""

    admitted: list[SimulatedSequence]
    preempted: list[SimulatedSequence]
    fetching: list[RemoteFetch]


class _InFlightStep(Struct, frozen=True):
    step: SchedulerOutput
    load: StepLoad
    begins: float
    ends: float


class EngineCore:
    """A scheduler whose steps take time. With asynchronous scheduling the next step is scheduled while one still
    runs.

    count_sampled: how many drafts of speculative decoding are accepted; None accepts none.
    host_link: of a scheduler with KV offloading.
    """

    def __init__(
        self,
        scheduler: SimulatedScheduler,
        step_time: StepTime,
        count_sampled: CountSampled | None = None,
        host_link: HostLink | None = None,
    ) -> None:
        if (host_link is None) != (scheduler.offloading is None):
            raise ValueError("a scheduler with KV offloading needs a link to the host, and no other has one")
        self.scheduler, self.host_link = scheduler, host_link
        self._count_sampled = count_sampled
        self.num_steps = 0
        self._step_time = step_time
        self._in_flight: deque[_InFlightStep] = deque()
        # vLLM's asynchronous scheduling prepares one step while the one before it runs, not more.
        self._max_in_flight = 2 if scheduler.config.async_scheduling else 1

    @property
    def next_step_end(self) -> float | None:
        """When the step that runs ends; None if nothing runs."""
        return self._in_flight[0].ends if self._in_flight else None

    @property
    def next_due(self) -> float | None:
        """When to call `step` next: at the end of the step that runs, else when a transfer with the host ends.

        While a step runs, ends of transfers are seen when it ends, as in vLLM; then their own due times are void.
        """
        if self._in_flight:
            return self._in_flight[0].ends
        return None if self.host_link is None else self.host_link.next_end

    @property
    def can_launch(self) -> bool:
        """Whether another step may be scheduled before the one that runs has ended."""
        return len(self._in_flight) < self._max_in_flight

    def compute_seconds(self, load: StepLoad) -> float:
        """Seconds that a step with this load takes on this engine alone."""
        return self._step_time(load)

    def add(self, sequence: SimulatedSequence) -> None:
        """Queue a sequence. It is considered when a step ends; if nothing runs, call `step` at once.

        Raises: RequestError if it can never run.
        """
        self.scheduler.add(sequence)

    def abort(self, sequence: SimulatedSequence, *, aborted: bool = False) -> None:
        """End a sequence: its blocks are freed at once, and it gets no more tokens. aborted: before its last token."""
        self.scheduler.finish(sequence, aborted=aborted)

    def step(self, now: float) -> StepOutcome:
        """End the oldest step if it is due by `now`, then launch new steps.

        Call it at `next_step_end` with exactly that time, or at the time of an arrival when nothing runs. Drivers that
        do not know the sampled tokens and the end of a sequence beforehand call `commit`, append the sampled tokens to
        the contents, call `abort` for every sequence that ends, in the order of `sampled`, and call `launch`.
        """
        outcome = self.complete(now)
        return StepOutcome(
            outcome.at, outcome.began, outcome.load, outcome.sampled, outcome.finished, *self.launch(outcome.at)
        )

    def commit(self, now: float) -> StepOutcome:
        """The first half of `step`: end the oldest step if it is due. Sequences that got their last token still run."""
        if not self._in_flight or self._in_flight[0].ends > now:
            return StepOutcome(now)
        flight = self._in_flight.popleft()
        sampled, finished = self.scheduler.update(flight.step, self._count_sampled)
        return StepOutcome(flight.ends, flight.begins, flight.load, sampled, finished)

    def complete(self, now: float) -> StepOutcome:
        """`commit`, and the end of the sequences that got their last token."""
        outcome = self.commit(now)
        # In the order of the step, in which vLLM frees their blocks: it decides which cached blocks are evicted first.
        for sequence in outcome.finished:
            self.scheduler.finish(sequence)
        return outcome

    def launch(self, now: float) -> LaunchedSteps:
        """The second half of `step`: begin steps as far as the rules allow."""
        launched: LaunchedSteps | None = None
        if self.host_link is not None:
            # Before anything is scheduled: what has been loaded by now can already run in the next step.
            self.scheduler.complete_transfers(self.host_link.pop_ended(now))
        while len(self._in_flight) < self._max_in_flight:
            step = self.scheduler.schedule()
            if launched is None:
                launched = LaunchedSteps([*step.admitted], [*step.preempted], [*step.fetching])
            else:
                launched.admitted.extend(step.admitted)
                launched.preempted.extend(step.preempted)
                launched.fetching.extend(step.fetching)
            begins = now if self.host_link is None else self._begin_transfers(step, self.host_link, now)
            if step.num_tokens:
                load = step.load
                self.begin(step, begins, self._step_time(load), load)
                if self.host_link is not None:
                    # The other stores begin when the step has computed what they read.
                    ends = self._in_flight[-1].ends
                    assert step.transfers is not None
                    for store in step.transfers.stores:
                        if store.id not in step.transfers.flushed:
                            self.host_link.begin(store, ends)
            # A step without tokens is scheduled again only if it has preempted: blocks are free now that were not
            # before.
            elif self._in_flight or not step.preempted:
                break
        return LaunchedSteps([], [], []) if launched is None else launched

    def begin(self, step: SchedulerOutput, now: float, seconds: float, load: StepLoad | None = None) -> None:
        """Launch a scheduled step that takes so long: at once, or after the one that runs.

        load: of the step, where the caller knows it.
        """
        begins = max(now, self._in_flight[-1].ends) if self._in_flight else now
        self._in_flight.append(_InFlightStep(step, step.load if load is None else load, begins, begins + seconds))
        self.num_steps += 1

    def _begin_transfers(self, step: SchedulerOutput, link: HostLink, now: float) -> float:
        """Begin the loads of a step and the stores that it waits for, or all of a step without tokens. Returns when the
        step begins: after stores that read blocks which it writes."""
        assert step.transfers is not None
        begins = max(now, self._in_flight[-1].ends) if self._in_flight else now
        for load in step.transfers.loads:
            link.begin(load, begins)
        waits = begins
        for store in step.transfers.stores:
            if store.id in step.transfers.flushed or not step.num_tokens:
                link.begin(store, begins)
        for id in step.transfers.flushed:
            waits = max(waits, link.get_end(id, begins))
        return waits
