"""Applies a batch of limit operations to the states of its keys.

A store of limits reads the states, calls `apply_batch` and writes them back, all in one
transaction. So every store has the same limits, whatever its database can compute.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from msgspec import Struct

from .counters import Counter, is_met
from .limits_store import (
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
    """The counters of a key by name, and its places by holder."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.places: dict[str, int] = {}


def encode_state(state: KeyState) -> str:
    counters = {
        name: (counter.used, counter.updated, counter.until)
        for name, counter in state.counters.items()
    }
    # Not msgspec: the integers can exceed 64 bits.
    return json.dumps([counters, state.places])


def decode_states(keys: Iterable[str], rows: Mapping[str, str | bytes]) -> dict[str, KeyState]:
    """Return the states of `keys`; a key without a row has an empty one."""
    states = {key: KeyState() for key in keys}
    for key, text in rows.items():
        counters, states[key].places = json.loads(text)
        states[key].counters = {
            name: Counter(updated, used, until) for name, (used, updated, until) in counters.items()
        }
    return states


def apply_batch(
    batch: Batch, now: int, states: Mapping[str, KeyState], holders: dict[str, Holder]
) -> BatchResult:
    """Apply a batch, and change `states` and `holders` accordingly.

    now: microseconds of Unix time.
    states: states of `batch.list_keys()`.
    holders: those of `batch.list_holders()` and of the places in `states` that the
        store knows, by id. Of these only `batch.list_holders()` are changed.
    """
    own_holder = holders.get(batch.holder)
    # It was applied before, and its response was lost: applying it again would take
    # everything twice.
    if own_holder is not None and own_holder.seq >= batch.seq:
        return BatchResult(BatchStatus.REPEATED)
    has_expired = own_holder is None or own_holder.expires <= now
    if batch.seq > 1 and has_expired and not batch.has_no_places:
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
    for state in states.values():
        # Places of an expired holder are not counted, but stay until the store has
        # forgotten it: a renewal that read the clock earlier may commit later.
        state.places = {id: number for id, number in state.places.items() if id in holders}
    for key, number in batch.places.items():
        states[key].places[batch.holder] = number
    live = {id for id, holder in holders.items() if holder.expires > now}
    for operation in redo:
        _apply_operation(operation, states[operation.key], batch.holder, live, now)
    outcomes = tuple(
        _apply_operation(op, states[op.key], batch.holder, live, now) for op in batch.operations
    )
    return BatchResult(BatchStatus.APPLIED, outcomes)


def _apply_operation(
    operation: LimitOperation, state: KeyState, holder: str, live: set[str], now: int
) -> OperationOutcome:
    counters: list[Counter] = []
    for demand in operation.demands:
        if demand.is_hold:
            used = sum(number for id, number in state.places.items() if id in live)
            counter = Counter(now, used)
        else:
            counter = state.counters.setdefault(demand.counter, Counter(now))
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
