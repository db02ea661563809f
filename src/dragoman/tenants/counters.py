"""Counters of limits: token buckets and concurrency, taken together or not at all.

A bucket holds `limit` units and refills continuously, `limit` units per period. So at most `limit * (1 + T / period)`
units are taken in any T, and a key that was idle for a period may send its whole limit at once. All numbers are
integers (time in microseconds), so that there is no rounding: a request that is rejected is accepted exactly
`retry_after` later.

`Counters` is the interface that a store shared by several processes implements; `LocalCounters` is exact within one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

MINUTE = 60_000_000
"""Microseconds."""


class Demand(Struct, frozen=True):
    """What a request takes from one counter of its key.

    counter: the counter's name, such as `requests`.
    limit: units; may change between two calls.
    period: microseconds in which the limit refills; 0 where units are given back (concurrency).
    amount: units to take.
    needed: units that must be there. More may be taken than are there: the counter is negative until it has refilled.
    """

    counter: str
    limit: int
    period: int = MINUTE
    amount: int = 1
    needed: int = 1


class CounterState(Struct, frozen=True):
    """A counter at one time.

    remaining: whole units; 0 also where it is negative.
    reset_after: microseconds until it is full, if nothing is taken.
    """

    counter: str
    limit: int
    remaining: int
    reset_after: int


class UnmetDemand(Struct, frozen=True):
    """The demand that cannot be met now. retry_after: microseconds; 0 where only the end of a request helps."""

    demand: Demand
    state: CounterState
    retry_after: int


class Counters(Protocol):
    """Counters by key and name. Every method is atomic."""

    async def take(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        """Take all demands, or none and return the one with the longest wait."""
        ...

    def add(self, key: str, demand: Demand) -> None:
        """Take `amount`, whatever is there; a negative amount gives back. A shared store may apply it later."""
        ...

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        """The counters of these demands, as far as this process knows."""
        ...


class _Counter:
    """used: units taken and not refilled, times the period (times 1 without a period). updated: microseconds."""

    __slots__ = ("updated", "used")

    def __init__(self, now: int) -> None:
        self.used, self.updated = 0, now

    def refill(self, demand: Demand, now: int) -> None:
        if demand.period and now > self.updated:
            self.used = max(0, self.used - (now - self.updated) * demand.limit)
        self.updated = max(self.updated, now)


class LocalCounters:
    """The counters of one process, as many as there are limits in the file of keys. read_clock: monotonic seconds."""

    def __init__(self, read_clock: Callable[[], float]) -> None:
        self._read_clock = read_clock
        self._counters: dict[tuple[str, str], _Counter] = {}

    async def take(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        now = self._now()
        counters = [self._find(key, demand, now) for demand in demands]
        rejections = [
            _build_rejection(counter, demand)
            for counter, demand in zip(counters, demands, strict=True)
            if _count_available(counter, demand) < min(demand.needed, demand.limit) * (demand.period or 1)
        ]
        if rejections:
            return max(rejections, key=lambda rejection: rejection.retry_after)
        for counter, demand in zip(counters, demands, strict=True):
            counter.used += demand.amount * (demand.period or 1)
        return None

    def add(self, key: str, demand: Demand) -> None:
        counter = self._find(key, demand, self._now())
        counter.used = max(0, counter.used + demand.amount * (demand.period or 1))

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        now = self._now()
        return tuple(_build_state(self._find(key, demand, now), demand) for demand in demands)

    def _now(self) -> int:
        return round(self._read_clock() * 1_000_000)

    def _find(self, key: str, demand: Demand, now: int) -> _Counter:
        """The counter, refilled until now."""
        counter = self._counters.get((key, demand.counter))
        if counter is None:
            counter = self._counters[key, demand.counter] = _Counter(now)
        counter.refill(demand, now)
        return counter


def _count_available(counter: _Counter, demand: Demand) -> int:
    return demand.limit * (demand.period or 1) - counter.used


def _build_state(counter: _Counter, demand: Demand) -> CounterState:
    remaining = max(0, _count_available(counter, demand) // (demand.period or 1))
    reset_after = -(-counter.used // demand.limit) if demand.period else 0
    return CounterState(demand.counter, demand.limit, remaining, reset_after)


def _build_rejection(counter: _Counter, demand: Demand) -> UnmetDemand:
    retry_after = 0
    if demand.period:
        missing = min(demand.needed, demand.limit) * demand.period - _count_available(counter, demand)
        retry_after = -(-missing // demand.limit)
    return UnmetDemand(demand, _build_state(counter, demand), retry_after)
