"""A workload on prefill and decode pools, on a virtual clock: two calls a request, and a transfer between them. Pure.

The client's first token is the decode side's, as behind vLLM's proxy; the one that prefill makes is not passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappush
from typing import Literal

import msgspec
from msgspec import Struct

from .disaggregation import LEASE_SECONDS, Leases, Link, TransferCost
from .engine_core import EngineCore, Outcome
from .replay import Replay, Replayed, Track, sequence_of
from .routing import Route
from .scheduler import Fetch
from .sequence import Sequence as Running
from .timing import Timing
from .workload import Request


class Split(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """prefill: so many of the engines, the first ones, only prefill; the others only decode.

    links: all transfers share one, or each pair of engines has its own. protocol: with vLLM's `kv_transfer_params` the
    prefill side keeps its blocks until they are fetched; with two plain calls it frees them, and nobody checks.
    """

    prefill: int
    cost: TransferCost
    links: Literal["shared", "pairs"] = "shared"
    protocol: Literal["kv_transfer_params", "plain"] = "kv_transfer_params"
    lease_seconds: float = LEASE_SECONDS


def replay_split(
    workload: Sequence[Request],
    cores: Sequence[EngineCore],
    split: Split,
    *,
    routes: tuple[Route, Route],
    frontend_seconds: float = 0.0,
    tick: Callable[[int], None] | None = None,
) -> Replayed:
    """As `replay`. routes: among the prefill engines, and among the others."""
    return _SplitReplay(workload, cores, frontend_seconds, routes, tick, split).run(None)


class _Legs(Struct):
    """Of one request: what is known of the prefill call, and of the transfer."""

    prefill: Track
    fetching_from: float = 0.0
    transfer_s: float = 0.0


class _SplitReplay(Replay):
    """Links and leases are due too; their places are negative numbers, links before leases."""

    def __init__(
        self,
        workload: Sequence[Request],
        cores: Sequence[EngineCore],
        frontend: float,
        routes: tuple[Route, Route],
        tick: Callable[[int], None] | None,
        split: Split,
    ) -> None:
        if not 0 < split.prefill < len(cores):
            raise ValueError("at least one prefill and one decode engine are required")
        super().__init__(workload, cores, frontend, routes[0], tick)
        self._split, self._decode_route = split, routes[1]
        self._legs: dict[str, _Legs] = {}
        self._fetches: dict[str, Running] = {}
        self._leases = [Leases(core.scheduler, split.lease_seconds) for core in cores[: split.prefill]]
        pairs = split.prefill * (len(cores) - split.prefill)
        self._links = [Link(split.cost) for _ in range(1 if split.links == "shared" else pairs)]

    def _queue(self, request: Request, arrival: float) -> int:
        legs = self._legs.get(request.id)
        return self._queue_prefill(request, arrival) if legs is None else self._queue_decode(request, arrival, legs)

    def _queue_prefill(self, request: Request, arrival: float) -> int:
        sequence = self._sequence(msgspec.structs.replace(request, output_tokens=1), arrival)
        sequence.keeps_blocks = self._split.protocol == "kv_transfer_params"
        replica = self._route(sequence, self._cores[: self._split.prefill])
        self._cores[replica].add(sequence)
        self._tracks[sequence] = track = Track(request, arrival, replica, sequence)
        self._legs[request.id] = _Legs(track)
        return replica

    def _queue_decode(self, request: Request, arrival: float, legs: _Legs) -> int:
        sequence = self._sequence(request, arrival)
        sequence.num_remote_tokens = request.input_tokens
        replica = self._split.prefill + self._decode_route(sequence, self._cores[self._split.prefill :])
        self._cores[replica].add(sequence)
        self._tracks[sequence] = Track(request, legs.prefill.arrival, replica, sequence)
        return replica

    def _sequence(self, request: Request, arrival: float) -> Running:
        return sequence_of(request, self._cores[0].scheduler.config.block_size, arrival + self._frontend)

    def _finish(self, track: Track) -> None:
        legs = self._legs[track.request.id]
        if track is not legs.prefill:
            super()._finish(track)
            return
        if track.sequence.keeps_blocks:
            leases = self._leases[track.replica]
            leases.keep(track.sequence, track.last)
            self._expect(-1 - len(self._links) - track.replica, leases.due)
        self._expect_arrival(track.last, track.request)

    def _happen(self, place: int, now: float) -> None:
        if place >= 0:
            self._step(place, now)
        elif -1 - place < len(self._links):
            self._land(-1 - place, now)
        else:
            leases = self._leases[-1 - place - len(self._links)]
            leases.expire(now)
            self._expect(place, leases.due)
            self._wake(-1 - place - len(self._links), now)

    def _step(self, replica: int, now: float) -> Outcome:
        outcome = super()._step(replica, now)
        for fetch in outcome.fetching:
            self._fetch(fetch, replica, outcome.at)
        if any(fetch.num_tokens for fetch in outcome.fetching):
            self._wake(replica, outcome.at)
        return outcome

    def _fetch(self, fetch: Fetch, replica: int, now: float) -> None:
        """The decode side wants the blocks; they may be gone."""
        id = fetch.sequence.id
        legs = self._legs[id]
        leases = self._leases[legs.prefill.replica]
        if fetch.num_tokens == 0:
            leases.release(id)
            self._wake(legs.prefill.replica, now)
        elif self._split.protocol == "plain" or leases.take(id):
            legs.fetching_from = now
            self._fetches[id] = fetch.sequence
            link = self._link(legs.prefill.replica, replica)
            self._links[link].begin(id, fetch.num_tokens, now)
            self._expect(-1 - link, self._links[link].due)
        else:
            self._cores[replica].scheduler.fetch_failed(fetch.sequence)

    def _land(self, link: int, now: float) -> None:
        for id in self._links[link].ended(now):
            legs, sequence = self._legs[id], self._fetches.pop(id)
            legs.transfer_s = now - legs.fetching_from
            self._leases[legs.prefill.replica].release(id)
            self._wake(legs.prefill.replica, now)
            replica = self._tracks[sequence].replica
            self._cores[replica].scheduler.fetched(sequence)
            self._wake(replica, now)
        self._expect(-1 - link, self._links[link].due)

    def _link(self, prefill: int, decode: int) -> int:
        decoders = len(self._cores) - self._split.prefill
        return 0 if self._split.links == "shared" else prefill * decoders + decode - self._split.prefill

    def _expect(self, place: int, due: float | None) -> None:
        if due is not None:
            heappush(self._due, (due, place))

    def _wake(self, replica: int, now: float) -> None:
        """Blocks have come free, or keys and values have come: an idle engine looks again."""
        core = self._cores[replica]
        if core.due is None and core.scheduler.num_waiting:
            self._step(replica, now)

    def _timing(self, track: Track) -> Timing:
        legs = self._legs[track.request.id]
        return msgspec.structs.replace(
            track.timing(),
            scheduled_s=legs.prefill.scheduled,
            cached_tokens=legs.prefill.sequence.num_cached_tokens or 0,
            preemptions=legs.prefill.sequence.num_preemptions + track.sequence.num_preemptions,
            prefill_replica=legs.prefill.replica,
            kv_transfer_s=legs.transfer_s,
        )
