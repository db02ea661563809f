"""Prefill and decode pools: two calls per request, with a KV transfer between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Literal

import msgspec
from msgspec import Struct

from dragoman_check.load.request_timing import Timing
from dragoman_check.load.workload import WorkloadRequest

from ..engine.block_leases import LEASE_SECONDS, BlockLeases
from ..engine.engine_core import EngineCore, StepOutcome
from ..engine.network_link import NetworkLink, TransferCost
from ..engine.sequence import SimulatedSequence
from .replay import Replay, RequestProgress, build_sequence
from .replay_result import ReplayResult
from .replica_router import ReplicaRouter


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
