"""The interface of a store of shared limits, which applies batches of operations.

- Places (concurrency slots) belong to a holder, which stands for a process. They are
  freed when the holder's lease expires. A process renews its lease while it holds
  places; if it is killed, they are not lost.
- Each batch has a number and is applied at most once: if a broken connection leaves its
  fate unknown, the next batch names it to the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from ..core.errors import EngineError
from .counters import Demand

TIMEOUT = 2.0
"""Seconds for one batch."""


HOLDER_RETENTION = 3_600_000_000
"""Microseconds after its lease for which a store remembers a holder, so that its late
batches are rejected.
"""


STATE_RETENTION = 70 * 86_400_000_000
"""Microseconds for which a store remembers the counters of an unused key: longer than a
month, the longest period of a limit.
"""


class LimitsStoreUnavailable(EngineError):
    """The limits store does not respond, or not correctly."""

    status = 503
    code = "limits_store_unavailable"


class LimitOperation(Struct, frozen=True):
    """The units that one request takes or gives back.

    key: id of the tenant.
    demands: units by counter.
    is_forced: the units are taken without checking the limits.
    """

    key: str
    demands: tuple[Demand, ...]
    is_forced: bool


class Batch(Struct, frozen=True, kw_only=True):
    """Operations of one process.

    holder: holder of the places that the batch takes.
    seq: number of the batch: 1, 2, ... for each holder.
    lease: duration of the lease, in microseconds; 0 gives up all places.
    operations: operations, in order.
    previous: holder and number of this process's last batch, if its fate is unknown. If
        it was not applied before, it never will be.
    redo: operations to apply if `previous` was not applied.
    places: places of the process by key, if the holder is new.
    has_no_places: the holder has none, so its lease may have expired, or been forgotten,
        and begins again.
    """

    holder: str
    seq: int
    lease: int
    operations: tuple[LimitOperation, ...] = ()
    previous: tuple[str, int] | None = None
    redo: tuple[LimitOperation, ...] = ()
    places: Mapping[str, int] = {}
    has_no_places: bool = False

    def list_keys(self) -> list[str]:
        """Return each key once, sorted: all processes lock keys in this order."""
        return sorted(
            {*self.places, *(operation.key for operation in (*self.redo, *self.operations))}
        )

    def list_holders(self) -> list[str]:
        """Return the holders that the batch changes."""
        return [self.holder] if self.previous is None else [self.holder, self.previous[0]]


class BatchStatus(StrEnum):
    """Whether a batch was applied.

    EXPIRED: not applied, because the holder's lease has expired or the store has lost
        it.
    REPEATED: not applied again; it was applied before.
    """

    APPLIED = "applied"
    EXPIRED = "expired"
    REPEATED = "repeated"


class OperationOutcome(Struct, frozen=True):
    """The result of an operation.

    is_taken: the units were taken: all demands were met, or the operation was forced.
    used: used units of each demand's counter afterwards, as in `Counter`.
    """

    is_taken: bool
    used: tuple[int, ...]


class BatchResult(Struct, frozen=True):
    """The result of a batch.

    outcomes: outcomes of `Batch.operations`, in order; empty unless applied.
    """

    status: BatchStatus
    outcomes: tuple[OperationOutcome, ...] = ()


class LimitsStore(Protocol):
    """A store of shared counters. Every method can raise LimitsStoreUnavailable."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def apply(self, batch: Batch) -> BatchResult:
        """Apply a batch atomically. A cancellation must take effect soon."""
        ...
