"""Disaggregated prefill and decode: roles, transfer parameters, block leases and transfers. Pure.

The protocol is that of vLLM's NIXL connector: the prefill call has max_tokens 1 and `do_remote_decode`; its response
names the prompt's blocks, which stay held until the decode side has fetched them or their lease has expired. The
decode call carries these parameters, allocates its own blocks, waits for the transfer and computes the last token only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal

from msgspec import Meta, Struct

from .scheduler import SimulatedScheduler
from .sequence import SimulatedSequence

Role = Literal["both", "prefill", "decode"]
"""vLLM's kv_role: kv_both, kv_producer, kv_consumer."""
LEASE_SECONDS = 480.0
"""vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


class KvTransferParams(Struct, frozen=True):
    """`kv_transfer_params` of a request or response. Fields are vLLM's; those of other connectors are ignored.

    remote_block_ids: a list per cache group (there is one), or, from older versions, the ids themselves.
    remote_blocks_expiry_time: only for blocks that the decode side holds, which it does not here.
    remote_prefill_cached_tokens: prompt tokens that the prefill side found in its cache.
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
    """Address of an instance's blocks."""

    engine_id: str
    host: str = "127.0.0.1"
    port: int = 5600
    tp_size: int = 1


def build_transfer_params(sequence: SimulatedSequence, address: KvAddress) -> KvTransferParams:
    """Build the prefill side's response parameters, for a sequence that holds its blocks."""
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
        self._scheduler, self._seconds = scheduler, seconds
        self._leases: OrderedDict[str, tuple[float, SimulatedSequence]] = OrderedDict()
        self._fetching: dict[str, SimulatedSequence] = {}

    def __len__(self) -> int:
        return len(self._leases) + len(self._fetching)

    @property
    def next_expiry(self) -> float | None:
        """When the next lease runs out."""
        return next(iter(self._leases.values()))[0] if self._leases else None

    def add(self, sequence: SimulatedSequence, now: float) -> None:
        """Add the held blocks of a finished sequence."""
        self._leases[sequence.id] = (now + self._seconds, sequence)

    def begin_fetch(self, id: str) -> bool:
        """Begin a fetch: the lease holds until `release`. Returns False if it has expired or does not exist."""
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
        """Free all leases, as an engine that crashes does."""
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

    bytes_per_token: of keys and values.
    bandwidth: of a link, bytes a second.
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
    """Transfers that share one bandwidth, equally at every moment. Each ends base_seconds after its last byte."""

    def __init__(self, cost: TransferCost) -> None:
        self._cost = cost
        self._flows: dict[str, float] = {}
        self._completing: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._flows) + len(self._completing)

    @property
    def next_completion(self) -> float | None:
        """When the next transfer ends, if no other begins; None if there is none."""
        ends = list(self._completing.values())
        if self._flows:
            ends.append(self._compute_flow_end() + self._cost.base_seconds)
        return min(ends, default=None)

    def begin(self, key: str, num_tokens: int, now: float) -> None:
        """The key names the transfer; it must not be in use."""
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
            # Flows share the bandwidth equally, so the one with the fewest bytes left ends next, and until then each
            # has moved as much.
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
