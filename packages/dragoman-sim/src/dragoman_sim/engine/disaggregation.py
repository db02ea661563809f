"""Disaggregated prefill and decode: roles, transfer parameters, block leases,
transfers. Callers pass the time.

The protocol is that of vLLM's NIXL connector: the prefill call has max_tokens 1 and
`do_remote_decode`; its response names the prompt's blocks, which stay held until the
decode side has fetched them or their lease has expired. The decode call carries these
parameters, allocates its own blocks, waits for the transfer and computes the last token
only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.core.engine import Ended, Failed
from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason
from .scheduler import RemoteFetch, SimulatedScheduler
from .sequence import SimulatedSequence

Role = Literal["both", "prefill", "decode"]
"""vLLM's kv_role: kv_both, kv_producer, kv_consumer."""
LEASE_SECONDS = 480.0
"""vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


class KvTransferParams(Struct, frozen=True):
    """`kv_transfer_params` of a request or response. Fields are vLLM's; those of other
    connectors are ignored.

    remote_block_ids: a list per cache group (there is one), or, from older versions,
        the ids themselves.
    remote_blocks_expiry_time: applies only to blocks that the decode side holds, which
        is not simulated.
    remote_prefill_cached_tokens: prompt tokens that the prefill side found in its
        cache.
    """

    do_remote_prefill: bool = False
    do_remote_decode: bool = False
    remote_block_ids: list[list[int] | int] | None = None
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    tp_size: int | None = None
    remote_num_tokens: Annotated[int, Meta(ge=0)] | None = None
    dcp_size: int | None = None
    pp_size: int | None = None
    remote_blocks_expiry_time: float | None = None
    remote_registration_generation: int | None = None
    transfer_mode: str | None = None
    remote_prefill_cached_tokens: int | None = None


class KvAddress(Struct, frozen=True):
    """The instance that holds blocks, and its address."""

    engine_id: str
    host: str = "127.0.0.1"
    port: int = 5600
    tp_size: int = 1


def build_transfer_params(sequence: SimulatedSequence, address: KvAddress) -> KvTransferParams:
    """Build the prefill side's response parameters, for a sequence that holds its
    blocks.
    """
    return KvTransferParams(
        do_remote_prefill=True,
        remote_block_ids=[list(sequence.blocks)],
        remote_engine_id=address.engine_id,
        remote_request_id=sequence.id,
        remote_host=address.host,
        remote_port=address.port,
        tp_size=address.tp_size,
        remote_num_tokens=sequence.num_computed_tokens,
        dcp_size=1,
        pp_size=1,
        remote_registration_generation=0,
        transfer_mode="pull",
        remote_prefill_cached_tokens=sequence.num_cached_tokens,
    )


class BlockLeases:
    """Blocks that one scheduler holds for other instances, each with an expiry."""

    def __init__(self, scheduler: SimulatedScheduler, seconds: float = LEASE_SECONDS) -> None:
        self._scheduler = scheduler
        self._seconds = seconds
        # All leases have the same duration, so the order of insertion is the order of
        # expiry.
        self._leases: OrderedDict[str, tuple[float, SimulatedSequence]] = OrderedDict()
        self._fetching: dict[str, SimulatedSequence] = {}

    def __len__(self) -> int:
        return len(self._leases) + len(self._fetching)

    @property
    def next_expiry(self) -> float | None:
        """The time at which the next lease expires; None without leases."""
        return next(iter(self._leases.values()))[0] if self._leases else None

    def add(self, sequence: SimulatedSequence, now: float) -> None:
        """Lease the held blocks of a finished sequence."""
        self._leases[sequence.id] = (now + self._seconds, sequence)

    def begin_fetch(self, id: str) -> bool:
        """Begin a fetch: the lease holds until `release`. Returns False if it has
        expired or does not exist.
        """
        entry = self._leases.pop(id, None)
        if entry is not None:
            self._fetching[id] = entry[1]
        return entry is not None

    def release(self, id: str) -> None:
        """Release a lease after the fetch or its cancellation. Idempotent."""
        entry = self._leases.pop(id, None)
        sequence = self._fetching.pop(id, None) if entry is None else entry[1]
        if sequence is not None:
            self._scheduler.release(sequence)

    def clear(self) -> None:
        """Free all leases, as a crash of the engine does."""
        for id in [*self._leases, *self._fetching]:
            self.release(id)

    def expire(self, now: float) -> list[str]:
        """Free expired leases and return their ids."""
        expired: list[str] = []
        while self._leases and next(iter(self._leases.values()))[0] <= now:
            id, (_, sequence) = self._leases.popitem(last=False)
            self._scheduler.release(sequence)
            expired.append(id)
        return expired


class TransferCost(Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a KV transfer.

    bytes_per_token: size of a token's keys and values.
    bandwidth: of the link, in bytes per second.
    base_seconds: latency of each transfer.
    """

    bytes_per_token: float
    bandwidth: float = 25e9
    base_seconds: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < float("inf") or not 0 < self.bytes_per_token < float("inf"):
            raise ValueError("a link's bandwidth and a token's bytes must be more than 0")
        if not 0 <= self.base_seconds < float("inf"):
            raise ValueError("a transfer's base_seconds must not be negative")


class NetworkLink:
    """Transfers that share one bandwidth, equally at every moment. Each ends
    base_seconds after its last byte.
    """

    def __init__(self, cost: TransferCost) -> None:
        self._cost = cost
        self._flows: dict[str, float] = {}
        self._completing: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._flows) + len(self._completing)

    @property
    def next_completion(self) -> float | None:
        """The time at which the next transfer ends, if no other begins; None if there
        is none.
        """
        ends = list(self._completing.values())
        if self._flows:
            ends.append(self._compute_flow_end() + self._cost.base_seconds)
        return min(ends, default=None)

    def begin(self, key: str, num_tokens: int, now: float) -> None:
        """Begin a transfer. key: identifies the transfer; must not be in use."""
        self._advance(now)
        self._flows[key] = num_tokens * self._cost.bytes_per_token

    def pop_completed(self, now: float) -> list[str]:
        """Return the transfers that have completed by now, in order; each once."""
        self._advance(now)
        completed = sorted((at, key) for key, at in self._completing.items() if at <= now)
        for _, key in completed:
            del self._completing[key]
        return [key for _, key in completed]

    def cancel(self, key: str, now: float) -> None:
        """Cancel a transfer; the others share its bandwidth from now on. Idempotent."""
        self._advance(now)
        self._flows.pop(key, None)
        self._completing.pop(key, None)

    def _compute_flow_end(self) -> float:
        return self._now + min(self._flows.values()) * len(self._flows) / self._cost.bandwidth

    def _advance(self, now: float) -> None:
        while self._flows and (end := self._compute_flow_end()) <= now:
            # Flows share the bandwidth equally, so the one with the fewest bytes left
            # ends next, and until then every flow has transferred the same number of
            # bytes.
            smallest = min(self._flows.values())
            for key, remaining in list(self._flows.items()):
                if remaining == smallest:
                    del self._flows[key]
                    self._completing[key] = end + self._cost.base_seconds
                else:
                    self._flows[key] = remaining - smallest
            self._now = end
        if self._flows:
            transferred = max(0.0, now - self._now) * self._cost.bandwidth / len(self._flows)
            self._flows = {key: remaining - transferred for key, remaining in self._flows.items()}
        self._now = max(self._now, now)


KvRole = Literal["kv_producer", "kv_consumer", "kv_both"]
_PARAM = "kv_transfer_params"


class TransferContext(Struct, frozen=True):
    """Transfer settings of an instance.

    report: notifies the named instance that its blocks are no longer needed.
    """

    address: KvAddress
    cost: TransferCost
    lease_seconds: float
    report: Callable[[KvTransferParams], None]


def parse_transfer_params(text: str, role: KvRole) -> KvTransferParams:
    """Parse a request's transfer parameters. Raises RequestError, also for what this
    role does not support.
    """
    try:
        params = msgspec.json.decode(text, type=KvTransferParams)
    except msgspec.DecodeError as error:
        raise RequestError(f"{_PARAM}: {error}", param=_PARAM) from None
    if params.do_remote_decode and params.do_remote_prefill:
        raise RequestError(
            f"{_PARAM}: do_remote_decode and do_remote_prefill cannot be combined", param=_PARAM
        )
    if params.do_remote_decode and role == "kv_consumer":
        raise RequestError(
            f"{_PARAM}: this instance is a kv_consumer; do_remote_decode needs a producer",
            param=_PARAM,
        )
    if params.do_remote_prefill and role == "kv_producer":
        raise RequestError(
            f"{_PARAM}: this instance is a kv_producer; do_remote_prefill needs a consumer",
            param=_PARAM,
        )
    return params


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
