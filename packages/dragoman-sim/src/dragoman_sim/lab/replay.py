"""Replay of a workload on a virtual clock: it turns the requests of a trace into
response times.

The clock jumps from event to event, so the replay runs as fast as the CPU allows.
Several replicas may share the workload; a `ReplicaRouter` assigns requests to them. The
replicas are aggregated engines, ranks in lock-step, or pools of prefill and decode
engines.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Literal

import msgspec
from msgspec import Struct

from ..engine.disaggregation import BlockLeases, LEASE_SECONDS, NetworkLink, TransferCost
from ..engine.engine_core import EngineCore, LaunchedSteps, StepOutcome
from ..engine.hashing import TracedContents
from ..engine.latency import StepLoad
from ..engine.sequence import SimulatedSequence
from .routing import ReplicaRouter
from dragoman_check.load.workload import Timing, WorkloadRequest


class StepLog(Struct):
    """The steps of one replica in order, as parallel columns.

    begins, ends: seconds.
    tokens, context, prefill_pairs, sequences: load of the step, as in
        `latency.StepLoad`.
    expert_tokens: mean tokens over the ranks that share experts; without such ranks,
        the step's own tokens.
    kv_usage, running, waiting: state right after the step, when the next one was
        scheduled.
    """

    begins: array[float]
    ends: array[float]
    tokens: array[float]
    context: array[float]
    prefill_pairs: array[float]
    sequences: array[float]
    expert_tokens: array[float]
    kv_usage: array[float]
    running: array[float]
    waiting: array[float]

    @classmethod
    def empty(cls) -> StepLog:
        return cls(*(array("d") for _ in cls.__struct_fields__))


class ReplicaCount(Struct, frozen=True):
    """The number of replicas from a time on.

    at: seconds.
    replicas: serving, starting and draining replicas, which cost the same.
    """

    at: float
    replicas: int


class ReplayResult(Struct, frozen=True):
    """The result of a replay.

    timings: timings of the answered requests, in the order of the workload.
    steps: one log per replica.
    gaps: inter-token latencies of all requests, in seconds.
    replica_counts: changes of the number of replicas; empty without autoscaling.
    has_host_cache: the engines offload keys and values to host memory.
    """

    timings: list[Timing]
    steps: list[StepLog]
    gaps: array[float]
    replica_counts: tuple[ReplicaCount, ...] = ()
    has_host_cache: bool = False

    @property
    def replica_seconds(self) -> float:
        """Replica-seconds from the first arrival to the last token."""
        begin = min((timing.arrival_s for timing in self.timings), default=0.0)
        end = max((timing.last_token_s for timing in self.timings), default=0.0)
        if not self.replica_counts:
            return len(self.steps) * (end - begin)
        points = (*self.replica_counts, ReplicaCount(end, 0))
        return sum(
            point.replicas * max(0.0, min(end, following.at) - point.at)
            for point, following in pairwise(points)
        )


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


# Data-parallel ranks in lock-step: if they share experts, every layer waits for the
# slowest rank. All ranks begin and end each step together; a rank without requests runs
# a dummy step (vllm/v1/engine/core.py, DPEngineCoreProc). The ranks of dense models are
# independent replicas instead.


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


# Prefill and decode pools: two calls per request, and a KV transfer between them.


class DisaggregationConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layout of a disaggregated deployment.

    prefill: number of engines that only prefill, counted from the first; the others
        only decode.
    cost: cost of a transfer.
    links: all transfers share one link, or each pair of engines has its own.
    protocol: with vLLM's `kv_transfer_params` the prefill engine holds its blocks until
        they are fetched; with two plain calls it frees them, and nothing checks that
        they still exist.
    lease_seconds: seconds for which blocks are held for a fetch.
    """

    prefill: int
    cost: TransferCost
    links: Literal["shared", "pairs"] = "shared"
    protocol: Literal["kv_transfer_params", "plain"] = "kv_transfer_params"
    lease_seconds: float = LEASE_SECONDS


def replay_disaggregated(
    workload: Sequence[WorkloadRequest],
    cores: Sequence[EngineCore],
    split: DisaggregationConfig,
    *,
    routers: tuple[ReplicaRouter, ReplicaRouter],
    frontend_seconds: float = 0.0,
    tick: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Serve the workload with prefill and decode engines; see `replay`.

    routers: the router of the prefill engines, and that of the decode engines.
    """
    return _DisaggregatedReplay(workload, cores, frontend_seconds, routers, tick, split).run(None)


class _TransferState(Struct):
    """The prefill call and the transfer of one request. Times are seconds."""

    prefill: RequestProgress
    fetch_started_at: float = 0.0
    transfer_s: float = 0.0


class _DisaggregatedReplay(Replay):
    """A replay with prefill and decode engines. Links, then leases, have negative
    numbers as sources of events.
    """

    def __init__(
        self,
        workload: Sequence[WorkloadRequest],
        cores: Sequence[EngineCore],
        frontend_seconds: float,
        routers: tuple[ReplicaRouter, ReplicaRouter],
        tick: Callable[[int], None] | None,
        split: DisaggregationConfig,
    ) -> None:
        if not 0 < split.prefill < len(cores):
            raise ValueError("at least one prefill and one decode engine are required")
        super().__init__(workload, cores, frontend_seconds, routers[0], tick)
        self._split = split
        self._decode_router = routers[1]
        self._prefillers = range(split.prefill)
        self._decoders = range(split.prefill, len(cores))
        self._transfers: dict[str, _TransferState] = {}
        self._fetches: dict[str, SimulatedSequence] = {}
        self._leases = [
            BlockLeases(core.scheduler, split.lease_seconds) for core in cores[: split.prefill]
        ]
        pairs = split.prefill * (len(cores) - split.prefill)
        # With a link per pair, transfers compete only with those between the same two
        # engines.
        self._links = [
            NetworkLink(split.cost) for _ in range(1 if split.links == "shared" else pairs)
        ]

    def _enqueue(self, request: WorkloadRequest, arrival: float) -> int:
        transfer = self._transfers.get(request.id)
        if transfer is None:
            sequence = self._build_sequence(
                msgspec.structs.replace(request, output_tokens=1), arrival
            )
            sequence.keeps_blocks = self._split.protocol == "kv_transfer_params"
            router = self._router
            replicas = self._prefillers
            arrived_at = arrival
        else:
            sequence = self._build_sequence(request, arrival)
            sequence.num_remote_tokens = request.input_tokens
            # For the client the request arrived with its prefill call, so its TTFT
            # starts there.
            router = self._decode_router
            replicas = self._decoders
            arrived_at = transfer.prefill.arrival
        replica = self._choose(request, sequence, arrival, router, replicas)
        self._cores[replica].add(sequence)
        router.record(replica, self._cores[replica], arrival)
        self._progress[sequence] = track = RequestProgress(request, arrived_at, replica, sequence)
        if transfer is None:
            self._transfers[request.id] = _TransferState(track)
        return replica

    def _build_sequence(self, request: WorkloadRequest, arrival: float) -> SimulatedSequence:
        return build_sequence(
            request, self._cores[0].scheduler.config.block_size, arrival + self._frontend_seconds
        )

    def _finish(self, track: RequestProgress) -> None:
        transfer = self._transfers[track.request.id]
        if track is not transfer.prefill:
            super()._finish(track)
            return
        if track.sequence.keeps_blocks:
            leases = self._leases[track.replica]
            leases.add(track.sequence, track.last_token_at)
            self._schedule_event(-1 - len(self._links) - track.replica, leases.next_expiry)
        self._schedule_arrival(track.last_token_at, track.request)

    def _handle_due(self, source: int, now: float) -> None:
        if source >= 0:
            self._step(source, now)
        elif -1 - source < len(self._links):
            link = -1 - source
            for id in self._links[link].pop_completed(now):
                transfer = self._transfers[id]
                sequence = self._fetches.pop(id)
                transfer.transfer_s = now - transfer.fetch_started_at
                self._leases[transfer.prefill.replica].release(id)
                self._wake(transfer.prefill.replica, now)
                replica = self._progress[sequence].replica
                self._cores[replica].scheduler.complete_fetch(sequence)
                self._wake(replica, now)
            self._schedule_event(-1 - link, self._links[link].next_completion)
        else:
            leases = self._leases[-1 - source - len(self._links)]
            leases.expire(now)
            self._schedule_event(source, leases.next_expiry)
            self._wake(-1 - source - len(self._links), now)

    def _step(self, replica: int, now: float) -> StepOutcome:
        outcome = super()._step(replica, now)
        self._decode_router.record(replica, self._cores[replica], outcome.at)
        for fetch in outcome.fetching:
            id = fetch.sequence.id
            transfer = self._transfers[id]
            leases = self._leases[transfer.prefill.replica]
            # The whole prompt is cached on the decode side, so the prefill side can
            # free its blocks at once.
            if fetch.num_tokens == 0:
                leases.release(id)
                self._wake(transfer.prefill.replica, outcome.at)
            # Only the protocol `kv_transfer_params` leases the blocks, and a lease may
            # have expired by now.
            elif self._split.protocol == "plain" or leases.begin_fetch(id):
                transfer.fetch_started_at = outcome.at
                self._fetches[id] = fetch.sequence
                link = 0
                decoders = len(self._cores) - self._split.prefill
                if self._split.links != "shared":
                    link = transfer.prefill.replica * decoders + replica - self._split.prefill
                self._links[link].begin(id, fetch.num_tokens, outcome.at)
                self._schedule_event(-1 - link, self._links[link].next_completion)
            else:
                self._cores[replica].scheduler.fail_fetch(fetch.sequence)
        if any(fetch.num_tokens for fetch in outcome.fetching):
            self._wake(replica, outcome.at)
        return outcome

    def _schedule_event(self, source: int, due: float | None) -> None:
        if due is not None:
            heappush(self._due_events, (due, source))

    def _wake(self, replica: int, now: float) -> None:
        """Step an idle engine after blocks were freed or a transfer completed."""
        core = self._cores[replica]
        if core.next_step_end is None and core.scheduler.num_waiting:
            self._step(replica, now)

    def _build_timing(self, track: RequestProgress) -> Timing:
        transfer = self._transfers[track.request.id]
        return msgspec.structs.replace(
            track.build_timing(),
            scheduled_s=transfer.prefill.scheduled,
            cached_tokens=transfer.prefill.sequence.num_cached_tokens or 0,
            preemptions=transfer.prefill.sequence.num_preemptions + track.sequence.num_preemptions,
            prefill_replica=transfer.prefill.replica,
            kv_transfer_s=transfer.transfer_s,
        )
