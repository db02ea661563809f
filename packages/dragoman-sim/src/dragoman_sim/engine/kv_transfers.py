"""The KV transfers of one rank, between prefill and decode instances. Callers pass the
time.

The protocol is that of vLLM's NIXL connector: the prefill call has max_tokens 1 and
`do_remote_decode`; its response names the prompt's blocks, which stay held until the
decode side has fetched them or their lease has expired. The decode call carries these
parameters, allocates its own blocks, waits for the transfer and computes the last token
only.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from dragoman.core.engine_stats import KvTransferStats
from dragoman.core.events import FinishReason
from dragoman.core.histogram import Histogram
from dragoman.core.token_engine import Ended, Failed

from .block_leases import BlockLeases
from .network_link import NetworkLink, TransferCost
from .scheduler import SimulatedScheduler
from .scheduler_output import RemoteFetch
from .sequence import SimulatedSequence
from .transfer_params import KvAddress, KvTransferParams, build_transfer_params

_POST_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_SIZE_BUCKETS = tuple(2 ** (10 + power) for power in range(1, 25, 2))
_DESCRIPTOR_BUCKETS = (*(10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000),)
"""Buckets of vLLM's histograms (nixl/stats.py)."""


class TransferContext(Struct, frozen=True):
    """Transfer settings of an instance.

    report: notifies the named instance that its blocks are no longer needed.
    layers: parts of a block that are transferred by themselves.
    fetches: whether the instance fetches blocks of others.
    """

    address: KvAddress
    cost: TransferCost
    lease_seconds: float
    report: Callable[[KvTransferParams], None]
    layers: int = 1
    fetches: bool = True


class KvTransfers:
    """The transfers of one rank.

    call_at: schedules a callback at a time.
    wake: called when a waiting sequence may be able to run.
    """

    def __init__(
        self,
        scheduler: SimulatedScheduler,
        context: TransferContext,
        call_at: Callable[[float, Callable[[float], None]], None],
        wake: Callable[[float], None],
    ) -> None:
        self._scheduler = scheduler
        self._context = context
        self._call_at = call_at
        self._wake = wake
        self._leases = BlockLeases(scheduler, context.lease_seconds)
        self._link = NetworkLink(context.cost)
        self._sources: dict[SimulatedSequence, KvTransferParams] = {}
        """Parameters of sequences with a remote prompt, until its instance was notified
        that it may free the blocks.
        """
        self._fetching: dict[str, RemoteFetch] = {}
        self._began: dict[str, float] = {}
        """Start of each transfer, by its sequence."""
        self._link_timer_at: float | None = None
        self.num_fetched_tokens = 0
        """Prompt tokens requested from other instances since the start."""
        self.num_late_notifications = 0
        self._num_expired = 0
        self._seconds = Histogram(_POST_BUCKETS[1:])
        self._post_seconds = Histogram(_POST_BUCKETS)
        self._sizes = Histogram(_SIZE_BUCKETS)
        self._descriptors = Histogram(_DESCRIPTOR_BUCKETS)

    @property
    def num_leased(self) -> int:
        """Number of sequences whose blocks are leased."""
        return len(self._leases)

    @property
    def stats(self) -> KvTransferStats:
        """The transfers since the start."""
        return KvTransferStats(
            self._seconds,
            self._post_seconds,
            self._sizes,
            self._descriptors,
            self._num_expired,
            self.num_late_notifications,
        )

    def count_by_stage(self) -> dict[str, int] | None:
        """Count the waiting sequences with a remote prompt by vLLM's names of stages;
        None if the instance fetches nothing.
        """
        if not self._context.fetches:
            return None
        return {
            "waiting_to_start": len(self._sources) - len(self._fetching),
            "in_progress": len(self._fetching),
            "completed_waiting": self._scheduler.num_fetched_waiting,
        }

    def register(self, sequence: SimulatedSequence, params: KvTransferParams) -> None:
        """Register a sequence's parameters before it is queued."""
        sequence.keeps_blocks = params.do_remote_decode
        if params.do_remote_prefill:
            remote_tokens = params.remote_num_tokens
            count = sequence.num_prompt_tokens
            sequence.num_remote_tokens = (
                count if remote_tokens is None else min(remote_tokens, count)
            )
            self._sources[sequence] = params

    def fetch(self, fetch: RemoteFetch, at: float) -> None:
        """Start the transfer of a fetch whose blocks the scheduler has allocated. A
        fetch of 0 tokens ends at once.
        """
        if not fetch.num_tokens:
            self._report(fetch.sequence)
            return
        self.num_fetched_tokens += fetch.num_tokens
        self._fetching[fetch.sequence.id] = fetch
        self._began[fetch.sequence.id] = at
        self._link.begin(fetch.sequence.id, fetch.num_tokens, at)
        self._schedule_link()

    def cancel(self, sequence: SimulatedSequence, at: float) -> None:
        """Cancel the transfer of an ended sequence."""
        self._began.pop(sequence.id, None)
        if self._fetching.pop(sequence.id, None) is not None:
            self._link.cancel(sequence.id, at)
            self._schedule_link()
        self._report(sequence)

    def finish(
        self, sequence: SimulatedSequence, last: Ended | Failed, at: float
    ) -> Ended | Failed:
        """Add transfer parameters to a sequence's last output and lease its blocks.

        As in vLLM, only the finish reasons length and stop leave blocks to fetch.
        """
        self.cancel(sequence, at)
        if not sequence.keeps_blocks or not sequence.blocks:
            return last
        if not isinstance(last, Ended) or last.reason not in (
            FinishReason.LENGTH,
            FinishReason.STOP,
        ):
            self._scheduler.release(sequence)
            return last
        params = build_transfer_params(sequence, self._context.address)
        self._leases.release(sequence.id)  # of an earlier request with the same id
        self._leases.add(sequence, at)
        self._call_at(at + self._context.lease_seconds, self._expire)
        return msgspec.structs.replace(
            last, kv_transfer_params=msgspec.json.encode(params).decode()
        )

    def release(self, id: str, at: float) -> bool:
        """Release a lease after another instance has fetched its blocks or cancelled
        the fetch. Idempotent. Returns whether there was one.
        """
        # A sequence may be waiting for these blocks while no step is running whose end
        # would schedule it.
        found = self._leases.release(id)
        self._call_at(at, self._wake)
        return found

    def clear(self) -> None:
        """Drop all leases and fetches."""
        self._leases.clear()
        # Otherwise the other instances would hold their blocks until the leases expire.
        for sequence in list(self._sources):
            self._report(sequence)

    def _expire(self, at: float) -> None:
        if expired := self._leases.expire(at):
            self._num_expired += len(expired)
            self._call_at(at, self._wake)

    def _schedule_link(self) -> None:
        due = self._link.next_completion
        if due is not None and due != self._link_timer_at:
            self._link_timer_at = due
            self._call_at(due, self._complete_transfers)

    def _complete_transfers(self, at: float) -> None:
        # Timers are not cancelled when another transfer moves the end, so this one may
        # be outdated.
        if at == self._link_timer_at:
            self._link_timer_at = None
        for id in self._link.pop_completed(at):
            fetch = self._fetching.pop(id)
            sequence = fetch.sequence
            self._observe(fetch, at)
            self._scheduler.complete_fetch(sequence)
            self._report(sequence)
            self._call_at(at, self._wake)
        self._schedule_link()

    def _observe(self, fetch: RemoteFetch, at: float) -> None:
        cost = self._context.cost
        self._seconds.observe(at - self._began.pop(fetch.sequence.id))
        self._post_seconds.observe(cost.base_seconds)
        self._sizes.observe(fetch.num_tokens * cost.bytes_per_token)
        blocks = -(-fetch.num_tokens // self._scheduler.config.block_size)
        self._descriptors.observe(blocks * self._context.layers)

    def _report(self, sequence: SimulatedSequence) -> None:
        source = self._sources.pop(sequence, None)
        if source is not None:
            self._context.report(source)
