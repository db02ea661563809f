"""Applies a batch of limit operations, the reference for the scripts in PostgreSQL and
Redis.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from .counters import Counter, is_met
from .limits_store import (
    HOLDER_RETENTION,
    Batch,
    BatchResult,
    BatchStatus,
    LimitOperation,
    OperationOutcome,
)


class Holder(Struct):
    """A process that holds places.

    expires: end of its lease, in microseconds of Unix time.
    seq: number of its last batch.
    """

    expires: int
    seq: int


class KeyState:
    """The counters of a key, and its places by holder."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.places: dict[str, int] = {}


def apply_batch(
    batch: Batch, now: int, find_state: Callable[[str], KeyState], holders: dict[str, Holder]
) -> BatchResult:
    """Apply a batch to the states of its keys. This is the reference for the scripts in
    PostgreSQL and Redis.

    now: microseconds of Unix time.
    find_state: returns the state of a key.
    holders: holders by id; changed in place.
    """
    own_holder = holders.get(batch.holder)
    # It was applied before, and its response was lost: applying it again would take
    # everything twice.
    if own_holder is not None and own_holder.seq >= batch.seq:
        return BatchResult(BatchStatus.REPEATED)
    if batch.seq > 1 and (own_holder is None or own_holder.expires <= now):
        return BatchResult(BatchStatus.EXPIRED)
    redo = batch.redo
    if batch.previous is not None:
        former, seq = batch.previous
        former_holder = holders.get(former)
        if former_holder is not None and former_holder.seq >= seq:
            redo = ()
        # Record the number, so that the former batch is rejected if it arrives later.
        holders[former] = Holder(now, seq)
    holders[batch.holder] = Holder(now + batch.lease, batch.seq)
    for id in [id for id, holder in holders.items() if holder.expires <= now - HOLDER_RETENTION]:
        del holders[id]
    live = {id for id, holder in holders.items() if holder.expires > now}
    for key, number in batch.places.items():
        find_state(key).places[batch.holder] = number
    for operation in redo:
        _apply_operation(operation, find_state(operation.key), batch.holder, live, now)
    outcomes = tuple(
        _apply_operation(op, find_state(op.key), batch.holder, live, now) for op in batch.operations
    )
    return BatchResult(BatchStatus.APPLIED, outcomes)


def _apply_operation(
    operation: LimitOperation, state: KeyState, holder: str, live: set[str], now: int
) -> OperationOutcome:
    # Free the places of holders whose lease has expired.
    for dead in [id for id in state.places if id not in live]:
        del state.places[dead]
    counters: list[Counter] = []
    for demand in operation.demands:
        counter = (
            state.counters.setdefault(demand.counter, Counter(now))
            if not demand.is_hold
            else Counter(now)
        )
        if demand.is_hold:
            counter.used = sum(state.places.values())
        counter.advance(demand, now)
        counters.append(counter)
    is_taken = operation.is_forced or all(
        is_met(demand, counter.used)
        for demand, counter in zip(operation.demands, counters, strict=True)
    )
    if is_taken:
        for demand, counter in zip(operation.demands, counters, strict=True):
            counter.add(demand)
            if demand.is_hold:
                state.places[holder] = max(0, state.places.get(holder, 0) + demand.amount)
    return OperationOutcome(is_taken, tuple(counter.used for counter in counters))
