"""Replay of a workload on a virtual clock: it turns the requests of a trace into
response times.

The clock jumps from event to event, so the replay runs as fast as the CPU allows.
Several replicas may share the workload; a `ReplicaRouter` assigns requests to them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest

from ..engine.block_hashes import TracedContents
from ..engine.engine_core import EngineCore, StepOutcome
from ..engine.sequence import SimulatedSequence
from .replay_result import ReplayResult, StepLog
from .replica_router import ReplicaRouter


def build_sequence(request: WorkloadRequest, block_size: int, arrival: float) -> SimulatedSequence:
    """Build the scheduler's sequence for a request of a trace."""
    contents = TracedContents(
        request.id,
        [block_hash.encode() for block_hash in request.block_hashes],
        block_size=block_size,
        traced_block_size=request.block_size,
        root=request.lora.encode(),
    )
    return SimulatedSequence(
        request.id,
        num_prompt_tokens=request.input_tokens,
        max_tokens=request.output_tokens,
        contents=contents,
        arrival=arrival,
        priority=request.priority,
        lora=request.lora,
    )


def replay(
    workload: Sequence[WorkloadRequest],
    cores: Sequence[EngineCore],
    *,
    frontend_seconds: float = 0.0,
    router: ReplicaRouter | None = None,
    until: frozenset[str] | None = None,
    tick: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Serve the whole workload.

    cores: one new engine core per replica.
    frontend_seconds: seconds from the client to the engine's queue.
    router: assigns requests to replicas; round robin by default.
    until: stop when all of these requests are answered; unanswered ones have no timing.
    tick: called with the number of requests answered so far.

    Raises:
        RequestError: a request can never run.
    """
    return Replay(workload, cores, frontend_seconds, router or ReplicaRouter(), tick).run(until)


class RequestProgress:
    """Progress of one request. Times are seconds; 0 if not reached yet."""

    __slots__ = (
        "arrival",
        "first_token_at",
        "last_token_at",
        "replica",
        "request",
        "scheduled",
        "sequence",
    )

    def __init__(
        self, request: WorkloadRequest, arrival: float, replica: int, sequence: SimulatedSequence
    ) -> None:
        self.request = request
        self.arrival = arrival
        self.replica = replica
        self.sequence = sequence
        self.scheduled = self.first_token_at = self.last_token_at = 0.0

    def build_timing(self) -> Timing:
        return Timing(
            id=self.request.id,
            arrival_s=self.arrival,
            first_token_s=self.first_token_at,
            last_token_s=self.last_token_at,
            input_tokens=self.request.input_tokens,
            output_tokens=self.request.output_tokens,
            scheduled_s=self.scheduled,
            cached_tokens=self.sequence.num_cached_tokens or 0,
            host_tokens=self.sequence.num_loaded_tokens,
            preemptions=self.sequence.num_preemptions,
            replica=self.replica,
        )


class Replay:
    """The event loop of a replay with aggregated engines; the other kinds of replicas
    extend it.
    """

    def __init__(
        self,
        workload: Sequence[WorkloadRequest],
        cores: Sequence[EngineCore],
        frontend_seconds: float,
        router: ReplicaRouter,
        tick: Callable[[int], None] | None,
    ) -> None:
        self._workload = workload
        self._cores = cores
        self._frontend_seconds = frontend_seconds
        self._router = router
        self._replicas: Sequence[int] = range(len(cores))
        """Replicas that get requests, as indices of `_cores`."""
        self._sessions: dict[str, str] = {}
        """Id of the first request of a conversation, by the ids of its later requests.
        """
        self._tick = tick
        self._progress: dict[SimulatedSequence, RequestProgress] = {}
        self._done: dict[str, RequestProgress] = {}
        self._unanswered: set[str] = set()
        self._step_logs = [StepLog.empty() for _ in cores]
        self._gaps = array("d")
        self._due_events: list[tuple[float, int]] = []
        self._arrivals: list[tuple[float, int, WorkloadRequest]] = []
        self._followers: dict[str, list[WorkloadRequest]] = {}
        self._order = {request.id: number for number, request in enumerate(workload)}
        for request in workload:
            if request.after is None:
                self._schedule_arrival(request.arrival_s, request)
            else:
                self._followers.setdefault(request.after, []).append(request)
                # A workload lists a request after the one that it follows, so the first
                # of the chain is known here.
                self._sessions[request.id] = self._sessions.get(request.after, request.after)

    def run(self, until: frozenset[str] | None) -> ReplayResult:
        self._unanswered = (
            set(until) if until is not None else {request.id for request in self._workload}
        )
        while self._unanswered:
            # An arrival at the time of a step's end comes first, so that the next step
            # can include it.
            if not self._arrivals or (
                self._due_events
                and self._due_events[0][0] < self._arrivals[0][0] + self._frontend_seconds
            ):
                now, source = heappop(self._due_events)
                self._handle_due(source, now)
                continue
            # Enqueue all requests of this time first: an idle replica then starts with
            # all of them.
            arrival = self._arrivals[0][0]
            idle: set[int] = set()
            while self._arrivals and self._arrivals[0][0] == arrival:
                replica = self._enqueue(heappop(self._arrivals)[2], arrival)
                if self._cores[replica].next_step_end is None:
                    idle.add(replica)
            for replica in sorted(idle):
                self._step(replica, arrival + self._frontend_seconds)
        answered = [
            self._done[request.id] for request in self._workload if request.id in self._done
        ]
        return ReplayResult(
            [self._build_timing(track) for track in answered],
            self._step_logs,
            self._gaps,
            has_host_cache=self._cores[0].host_link is not None,
        )

    def _build_timing(self, track: RequestProgress) -> Timing:
        return track.build_timing()

    def _handle_due(self, source: int, now: float) -> None:
        """Handle a due event: in this class the end of a step, or of a transfer to host
        memory, of replica `source`.
        """
        core = self._cores[source]
        # With offloading the event may be the end of a transfer, which is outdated if a
        # step has begun since.
        if core.host_link is None or core.next_due == now:
            self._step(source, now)

    def _enqueue(self, request: WorkloadRequest, arrival: float) -> int:
        sequence = build_sequence(
            request, self._cores[0].scheduler.config.block_size, arrival + self._frontend_seconds
        )
        replica = self._choose(request, sequence, arrival, self._router, self._replicas)
        self._cores[replica].add(sequence)
        self._router.record(replica, self._cores[replica], arrival)
        self._progress[sequence] = RequestProgress(request, arrival, replica, sequence)
        return replica

    def _choose(
        self,
        request: WorkloadRequest,
        sequence: SimulatedSequence,
        arrival: float,
        router: ReplicaRouter,
        replicas: Sequence[int],
    ) -> int:
        session = self._sessions.get(request.id, request.id)
        return router.choose(sequence, self._cores, replicas, session=session, now=arrival)

    def _step(self, replica: int, now: float) -> StepOutcome:
        core = self._cores[replica]
        outcome = core.step(now)
        self._handle_outcome(replica, outcome)
        self._schedule_step_end(replica, core.next_due)
        return outcome

    def _handle_outcome(self, replica: int, outcome: StepOutcome) -> None:
        tracks = self._progress
        gaps = self._gaps
        at = outcome.at
        for sequence in outcome.sampled:
            track = tracks[sequence]
            if track.last_token_at:
                gaps.append(at - track.last_token_at)
            else:
                track.first_token_at = at
            track.last_token_at = at
        for sequence in outcome.admitted:
            tracks[sequence].scheduled = tracks[sequence].scheduled or at
        for sequence in outcome.finished:
            self._finish(tracks.pop(sequence))
        self._router.record(replica, self._cores[replica], at)
        if outcome.load is None or outcome.began is None:
            return
        log = self._step_logs[replica]
        load = outcome.load
        scheduler = self._cores[replica].scheduler
        log.begins.append(outcome.began)
        log.ends.append(at)
        log.tokens.append(load.tokens)
        log.context.append(load.context)
        log.prefill_pairs.append(load.prefill_pairs)
        log.sequences.append(load.sequences)
        log.expert_tokens.append(load.tokens if load.expert_tokens is None else load.expert_tokens)
        log.kv_usage.append(scheduler.pool.usage)
        log.running.append(scheduler.num_running)
        log.waiting.append(scheduler.num_waiting)

    def _schedule_step_end(self, source: int, ends: float | None) -> None:
        if ends is not None:
            heappush(self._due_events, (ends, source))

    def _finish(self, track: RequestProgress) -> None:
        self._done[track.request.id] = track
        self._unanswered.discard(track.request.id)
        if self._tick is not None:
            self._tick(len(self._done))
        for request in self._followers.pop(track.request.id, ()):
            self._schedule_arrival(track.last_token_at + request.arrival_s, request)

    def _schedule_arrival(self, at: float, request: WorkloadRequest) -> None:
        """Schedule an arrival; simultaneous arrivals keep the workload's order."""
        heappush(self._arrivals, (at, self._order[request.id], request))
