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

from dragoman.core.events import FinishReason
from dragoman.core.token_engine import Ended, Failed

from .block_leases import BlockLeases
from .network_link import NetworkLink, TransferCost
from .scheduler import SimulatedScheduler
from .scheduler_output import RemoteFetch
from .sequence import SimulatedSequence
from .transfer_params import KvAddress, KvTransferParams, build_transfer_params


class TransferContext(Struct, frozen=True):
    """Transfer settings of an instance.

    report: notifies the named instance that its blocks are no longer needed.
    """

    address: KvAddress
    cost: TransferCost
    lease_seconds: float
    report: Callable[[KvTransferParams], None]


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
        self._fetching: dict[str, SimulatedSequence] = {}
        self._link_timer_at: float | None = None
        self.num_fetched_tokens = 0
        """Prompt tokens requested from other instances since the start."""

    @property
    def num_leased(self) -> int:
        """Number of sequences whose blocks are leased."""
        return len(self._leases)

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
        self._fetching[fetch.sequence.id] = fetch.sequence
        self._link.begin(fetch.sequence.id, fetch.num_tokens, at)
        self._schedule_link()

    def cancel(self, sequence: SimulatedSequence, at: float) -> None:
        """Cancel the transfer of an ended sequence."""
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

    def release(self, id: str, at: float) -> None:
        """Release a lease after another instance has fetched its blocks or cancelled
        the fetch. Idempotent.
        """
        # A sequence may be waiting for these blocks while no step is running whose end
        # would schedule it.
        self._leases.release(id)
        self._call_at(at, self._wake)

    def clear(self) -> None:
        """Drop all leases and fetches."""
        self._leases.clear()
        # Otherwise the other instances would hold their blocks until the leases expire.
        for sequence in list(self._sources):
            self._report(sequence)

    def _expire(self, at: float) -> None:
        if self._leases.expire(at):
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
            sequence = self._fetching.pop(id)
            self._scheduler.complete_fetch(sequence)
            self._report(sequence)
            self._call_at(at, self._wake)
        self._schedule_link()

    def _report(self, sequence: SimulatedSequence) -> None:
        source = self._sources.pop(sequence, None)
        if source is not None:
            self._context.report(source)
