"""Prefill on one instance, decode on another: roles, what they tell each other, kept blocks, and transfers. Pure.

vLLM's way (its NIXL connector): the prefill call has max_tokens 1 and `do_remote_decode`; it is answered with where
the prompt's blocks are, and they stay held until the decode side has fetched them or their lease has run out. The
decode call carries that answer, gets blocks of its own, waits for the transfer, and computes the last token only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal

from msgspec import Meta, Struct

from .scheduler import SimulatedScheduler
from .sequence import SimulatedSequence

Role = Literal["both", "prefill", "decode"]
"""As vLLM's kv_role has it: kv_both, kv_producer, kv_consumer."""
LEASE_SECONDS = 480.0
"""vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


class KvTransferParams(Struct, frozen=True):
    """`kv_transfer_params` on the wire, asked and answered. Fields are vLLM's; other connectors' are ignored.

    remote_block_ids: a list a cache group (of which there is one), or, from older versions, the ids themselves.
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


class KvAddress(Struct, frozen=True):
    """Where an instance's blocks are to be had."""

    engine_id: str
    host: str = "127.0.0.1"
    port: int = 5600
    tp_size: int = 1


def build_transfer_params(sequence: SimulatedSequence, address: KvAddress) -> KvTransferParams:
    """The answer of the prefill side, for a sequence that keeps its blocks."""
    return KvTransferParams(
        do_remote_prefill=True,
        remote_block_ids=[list(sequence.blocks)],
        remote_engine_id=address.engine_id,
        remote_request_id=sequence.id,
        remote_host=address.host,
        remote_port=address.port,
        tp_size=address.tp_size,
        remote_num_tokens=sequence.num_prompt_tokens,
    )


class BlockLeases:
    """Blocks that one scheduler keeps for others, each for so many seconds."""

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
        """For a finished sequence that has kept its blocks."""
        self._leases[sequence.id] = (now + self._seconds, sequence)

    def begin_fetch(self, id: str) -> bool:
        """The decode side begins to fetch: the lease holds until `release`. False if it has run out, or never was."""
        entry = self._leases.pop(id, None)
        if entry is not None:
            self._fetching[id] = entry[1]
        return entry is not None

    def release(self, id: str) -> None:
        """The decode side has it all, or wants it no more. Again does nothing."""
        entry = self._leases.pop(id, None)
        sequence = self._fetching.pop(id, None) if entry is None else entry[1]
        if sequence is not None:
            self._scheduler.release(sequence)

    def clear(self) -> None:
        """Free everything, as an engine that dies does."""
        for id in [*self._leases, *self._fetching]:
            self.release(id)

    def expire(self, now: float) -> list[str]:
        """Free what has run out by now, and say whose it was."""
        expired: list[str] = []
        while self._leases and next(iter(self._leases.values()))[0] <= now:
            id, (_, sequence) = self._leases.popitem(last=False)
            self._scheduler.release(sequence)
            expired.append(id)
        return expired


class TransferCost(Struct, frozen=True, forbid_unknown_fields=True):
    """base_seconds: of each transfer. bandwidth: bytes a second of a link. bytes_per_token: of keys and values."""

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
        """What has ended by now, in order; each is told once."""
        self._advance(now)
        completed = sorted((at, key) for key, at in self._completing.items() if at <= now)
        for _, key in completed:
            del self._completing[key]
        return [key for _, key in completed]

    def cancel(self, key: str, now: float) -> None:
        """The others have more of the bandwidth from now on. Again does nothing."""
        self._advance(now)
        self._flows.pop(key, None)
        self._completing.pop(key, None)

    def _compute_flow_end(self) -> float:
        return self._now + min(self._flows.values()) * len(self._flows) / self._cost.bandwidth

    def _advance(self, now: float) -> None:
        while self._flows and (end := self._compute_flow_end()) <= now:
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
