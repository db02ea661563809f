"""One simulated vLLM engine core: when its steps begin and end, and which sequences get
a token.

Sans-I/O: a driver passes in requests and the time, and waits until `next_due` on its
own clock. All times are absolute deadlines on that clock, so a late wake-up does not
shift later steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from .kv_offloading import HostLink
from .latency import StepLoad, StepTime
from .scheduler import CountSampled, SimulatedScheduler
from .scheduler_output import RemoteFetch, SchedulerOutput
from .sequence import SimulatedSequence


class StepOutcome(Struct, frozen=True):
    """The result of a call of `step`.

    at: time at which the completed step ended; without one, the time passed in.
    began, load: start and load of that step; None if none ended.
    sampled: sequences that got a token at `at`, or with speculative decoding
        `num_sampled` tokens.
    finished: sequences among `sampled` that got their last token.
    admitted: sequences that left the queue for a launched step.
    preempted: sequences that went back into the queue.
    fetching: sequences that left the queue to wait for another instance; call
        `scheduler.complete_fetch` or `fail_fetch` when it responds.
    below_threshold: sequences that ended in the queue, since too little is cached.
    """

    at: float
    began: float | None = None
    load: StepLoad | None = None
    sampled: Sequence[SimulatedSequence] = ()
    finished: Sequence[SimulatedSequence] = ()
    admitted: Sequence[SimulatedSequence] = ()
    preempted: Sequence[SimulatedSequence] = ()
    fetching: Sequence[RemoteFetch] = ()
    below_threshold: Sequence[SimulatedSequence] = ()


class LaunchedSteps(Struct, frozen=True):
    """The scheduling part of a `StepOutcome`."""

    admitted: Sequence[SimulatedSequence] = ()
    preempted: Sequence[SimulatedSequence] = ()
    fetching: Sequence[RemoteFetch] = ()
    below_threshold: Sequence[SimulatedSequence] = ()

    def add(self, step: SchedulerOutput) -> LaunchedSteps:
        return LaunchedSteps(
            [*self.admitted, *step.admitted],
            [*self.preempted, *step.preempted],
            [*self.fetching, *step.fetching],
            [*self.below_threshold, *step.below_threshold],
        )


def build_outcome(ended: StepOutcome, launched: LaunchedSteps) -> StepOutcome:
    """Build the outcome of a call that ended a step and launched others."""
    return StepOutcome(
        ended.at,
        ended.began,
        ended.load,
        ended.sampled,
        ended.finished,
        launched.admitted,
        launched.preempted,
        launched.fetching,
        launched.below_threshold,
    )


class _InFlightStep(Struct, frozen=True):
    step: SchedulerOutput
    load: StepLoad
    begins: float
    ends: float


class EngineCore:
    """A scheduler whose steps take time. With asynchronous scheduling, a step is
    scheduled while another one runs.

    count_sampled: counts the tokens that a sequence with drafts gets in a step; None
        accepts no draft.
    host_link: the link to host memory; required exactly if the scheduler has KV
        offloading.
    """

    def __init__(
        self,
        scheduler: SimulatedScheduler,
        step_time: StepTime,
        count_sampled: CountSampled | None = None,
        host_link: HostLink | None = None,
    ) -> None:
        if (host_link is None) != (scheduler.offloading is None):
            raise ValueError(
                "a link to the host is required with KV offloading, and not allowed without it"
            )
        self.scheduler = scheduler
        self.host_link = host_link
        self._count_sampled = count_sampled
        self.num_steps = 0
        self.next_step_end: float | None = None
        """The time at which the running step ends; None if none runs."""
        self._step_time = step_time
        self._in_flight: deque[_InFlightStep] = deque()
        # vLLM's asynchronous scheduling prepares at most one step ahead.
        self._max_in_flight = 2 if scheduler.config.async_scheduling else 1

    @property
    def next_due(self) -> float | None:
        """The time to call `step` next: the end of the running step, else that of the
        next transfer with the host.

        As in vLLM, transfers that end while a step runs are processed at the end of the
        step.
        """
        if self.next_step_end is None and self.host_link is not None:
            return self.host_link.next_end
        return self.next_step_end

    @property
    def can_launch(self) -> bool:
        """Whether another step may be scheduled before the running one has ended."""
        return len(self._in_flight) < self._max_in_flight

    def compute_seconds(self, load: StepLoad) -> float:
        """Compute the seconds that a step with this load takes, without regard to other
        ranks.
        """
        return self._step_time(load)

    def add(self, sequence: SimulatedSequence) -> None:
        """Queue a sequence. It is considered when a step ends; if nothing runs, call
        `step` at once.

        Raises: RequestError if it can never run.
        """
        self.scheduler.add(sequence)

    def abort(self, sequence: SimulatedSequence, *, aborted: bool = False) -> None:
        """End a sequence: its blocks are freed and it gets no more tokens. aborted:
        whether it ends prematurely.
        """
        self.scheduler.finish(sequence, aborted=aborted)

    def step(self, now: float) -> StepOutcome:
        """End the oldest step if it is due by `now`, then launch new steps.

        Call it at `next_step_end` with exactly that time, or at the time of an arrival
        when nothing runs. Drivers that do not know the sampled tokens and the end of a
        sequence beforehand call `commit`, append the sampled tokens to the contents,
        call `abort` for every sequence that ends, in the order of `sampled`, and call
        `launch`.
        """
        ended = self.complete(now)
        return build_outcome(ended, self.launch(ended.at))

    def commit(self, now: float) -> StepOutcome:
        """End the oldest step if it is due: the first half of `step`. Finished
        sequences stay in the running set.
        """
        ends = self.next_step_end
        if ends is None or ends > now:
            return StepOutcome(now)
        flight = self._in_flight.popleft()
        self.next_step_end = self._in_flight[0].ends if self._in_flight else None
        sampled, finished = self.scheduler.update(flight.step, self._count_sampled)
        return StepOutcome(flight.ends, flight.begins, flight.load, sampled, finished)

    def complete(self, now: float) -> StepOutcome:
        """Call `commit`, and end the sequences that got their last token."""
        outcome = self.commit(now)
        # vLLM frees blocks in the order of the step, which decides which cached blocks
        # are evicted first.
        for sequence in outcome.finished:
            self.scheduler.finish(sequence)
        return outcome

    def launch(self, now: float) -> LaunchedSteps:
        """Launch new steps up to the limit of steps in flight: the second half of
        `step`.
        """
        launched = LaunchedSteps()
        scheduler = self.scheduler
        in_flight = self._in_flight
        link = self.host_link
        if link is not None:
            # Before scheduling, so that sequences that are loaded by now can run in the
            # next step.
            scheduler.complete_transfers(link.pop_ended(now))
        while len(in_flight) < self._max_in_flight and (in_flight or scheduler.has_work):
            step = scheduler.schedule()
            # Most steps only continue what runs.
            if step.admitted or step.preempted or step.fetching or step.below_threshold:
                launched = launched.add(step)
            begins = now if link is None else self._begin_transfers(step, link, now)
            if step.decodes or step.chunks:
                load = step.load
                self.begin(step, load, begins, self._step_time(load))
                if link is not None:
                    # Stores that no step waits for begin when the step has computed the
                    # blocks that they read.
                    ends = in_flight[-1].ends
                    assert step.transfers is not None
                    for store in step.transfers.stores:
                        if store.id not in step.transfers.flushed:
                            link.begin(store, ends)
            # After a step without tokens, scheduling again helps only if the step
            # preempted, which freed blocks.
            elif in_flight or not step.preempted:
                break
        return launched

    def begin(self, step: SchedulerOutput, load: StepLoad, now: float, seconds: float) -> None:
        """Launch a scheduled step, now or after the running one."""
        in_flight = self._in_flight
        begins = max(now, in_flight[-1].ends) if in_flight else now
        ends = begins + seconds
        if not in_flight:
            self.next_step_end = ends
        in_flight.append(_InFlightStep(step, load, begins, ends))
        self.num_steps += 1

    def _begin_transfers(self, step: SchedulerOutput, link: HostLink, now: float) -> float:
        """Begin the loads of a step and the stores that it waits for; without tokens,
        all of its stores.

        Returns the time at which the step begins: after the stores that read blocks
        which the step writes.
        """
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
