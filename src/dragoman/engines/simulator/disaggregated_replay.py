"""Replay of a workload on prefill and decode pools: two calls a request and a transfer between them. Pure.

The client's first token is the decode side's, as behind vLLM's proxy; the token of the prefill call is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Literal

import msgspec
from msgspec import Struct

from .disaggregation import LEASE_SECONDS, BlockLeases, NetworkLink, TransferCost
from .engine_core import EngineCore, StepOutcome
from .replay import Replay, ReplayResult, RequestProgress, build_sequence
from .routing import ReplicaRouter
from .scheduler import RemoteFetch
from .sequence import SimulatedSequence as Running
from .timing import Timing
from .workload import WorkloadRequest


class DisaggregationConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layout of a disaggregated deployment.

    prefill: number of engines that only prefill, counted from the first; the others only decode.
    cost: of a transfer.
    links: all transfers share one link, or each pair of engines has its own.
    protocol: with vLLM's `kv_transfer_params` the prefill side holds its blocks until they are fetched; with two plain
        calls it frees them, and nothing checks that they still exist.
    lease_seconds: how long blocks are held for a fetch.
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
    """As `replay`. routers: among the prefill engines, and among the decode engines."""
    return _DisaggregatedReplay(workload, cores, frontend_seconds, routers, tick, split).run(None)


class _TransferState(Struct):
    """State of one request: its prefill call and its transfer."""

    prefill: RequestProgress
    fetch_started_at: float = 0.0
    transfer_s: float = 0.0


class _DisaggregatedReplay(Replay):
    """A replay whose events include links and leases; their sources are negative numbers, links before leases."""

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
        self._split, self._decode_router = split, routers[1]
        self._prefillers, self._decoders = range(split.prefill), range(split.prefill, len(cores))
        self._transfers: dict[str, _TransferState] = {}
        self._fetches: dict[str, Running] = {}
        self._leases = [BlockLeases(core.scheduler, split.lease_seconds) for core in cores[: split.prefill]]
        pairs = split.prefill * (len(cores) - split.prefill)
        # One link for each pair: transfers compete only with those between the same two engines.
        self._links = [NetworkLink(split.cost) for _ in range(1 if split.links == "shared" else pairs)]

    def _enqueue(self, request: WorkloadRequest, arrival: float) -> int:
        transfer = self._transfers.get(request.id)
        return (
            self._enqueue_prefill(request, arrival)
            if transfer is None
            else self._enqueue_decode(request, arrival, transfer)
        )

    def _enqueue_prefill(self, request: WorkloadRequest, arrival: float) -> int:
        sequence = self._build_sequence(msgspec.structs.replace(request, output_tokens=1), arrival)
        sequence.keeps_blocks = self._split.protocol == "kv_transfer_params"
        replica = self._choose(request, sequence, arrival, self._router, self._prefillers)
        self._cores[replica].add(sequence)
        self._router.record(replica, self._cores[replica], arrival)
        self._progress[sequence] = track = RequestProgress(request, arrival, replica, sequence)
        self._transfers[request.id] = _TransferState(track)
        return replica

    def _enqueue_decode(self, request: WorkloadRequest, arrival: float, transfer: _TransferState) -> int:
        sequence = self._build_sequence(request, arrival)
        sequence.num_remote_tokens = request.input_tokens
        replica = self._choose(request, sequence, arrival, self._decode_router, self._decoders)
        self._cores[replica].add(sequence)
        self._decode_router.record(replica, self._cores[replica], arrival)
        # For the client the request arrived with its prefill call, so its time to first token starts there.
        self._progress[sequence] = RequestProgress(request, transfer.prefill.arrival, replica, sequence)
        return replica

    def _build_sequence(self, request: WorkloadRequest, arrival: float) -> Running:
        return build_sequence(request, self._cores[0].scheduler.config.block_size, arrival + self._frontend_seconds)

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
                transfer, sequence = self._transfers[id], self._fetches.pop(id)
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
            self._start_fetch(fetch, replica, outcome.at)
        if any(fetch.num_tokens for fetch in outcome.fetching):
            self._wake(replica, outcome.at)
        return outcome

    def _start_fetch(self, fetch: RemoteFetch, replica: int, now: float) -> None:
        """Start a fetch by the decode side; the lease may have expired."""
        id = fetch.sequence.id
        transfer = self._transfers[id]
        leases = self._leases[transfer.prefill.replica]
        # All of the prompt is cached on the decode side: the blocks that the prefill side holds are free at once.
        if fetch.num_tokens == 0:
            leases.release(id)
            self._wake(transfer.prefill.replica, now)
        # Only the protocol `kv_transfer_params` leases the blocks, and a lease may have expired by now.
        elif self._split.protocol == "plain" or leases.begin_fetch(id):
            transfer.fetch_started_at = now
            self._fetches[id] = fetch.sequence
            link, decoders = 0, len(self._cores) - self._split.prefill
            if self._split.links != "shared":
                link = transfer.prefill.replica * decoders + replica - self._split.prefill
            self._links[link].begin(id, fetch.num_tokens, now)
            self._schedule_event(-1 - link, self._links[link].next_completion)
        else:
            self._cores[replica].scheduler.fail_fetch(fetch.sequence)

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
