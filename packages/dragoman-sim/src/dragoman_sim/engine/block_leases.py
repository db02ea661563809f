"""Blocks that one scheduler holds for other instances, each with an expiry."""

from __future__ import annotations

from collections import OrderedDict

from .scheduler import SimulatedScheduler
from .sequence import SimulatedSequence

LEASE_SECONDS = 480.0
"""vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT."""


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

    def release(self, id: str) -> bool:
        """Release a lease after the fetch or its cancellation. Idempotent. Returns
        whether there was one.
        """
        entry = self._leases.pop(id, None)
        sequence = self._fetching.pop(id, None) if entry is None else entry[1]
        if sequence is not None:
            self._scheduler.release(sequence)
        return sequence is not None

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
