"""Counters of limits: token buckets, concurrency and budgets, taken together or not at all.

A bucket holds `limit` units and refills continuously, `limit` units per period. So at most `limit * (1 + T / period)`
units are taken in any T, and a key that was idle for a period may send its whole limit at once. All numbers are
integers (time in microseconds), so that nothing is rounded: a request that is rejected is accepted exactly
`retry_after` later.

`Counters` is the interface. `LocalCounters` is exact within one process; `shared.SharedCounters` among several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

MINUTE = 60_000_000
"""Microseconds."""
MAX_CLOCK_STEP = MINUTE
"""Microseconds by which a clock may be behind the last reading, since clocks of machines differ. One that is further
behind was set back, and counts from then on."""


class Demand(Struct, frozen=True):
    """The units that a request takes from one counter of its key.

    counter: the counter's name, such as `requests`.
    limit: units; may change between two calls.
    period: microseconds in which the limit refills; 0 where units are given back (concurrency) and for budgets.
    amount: units to take.
    needed: units that must be there. More may be taken than are there: the counter is negative until it has refilled.
    until: of a budget, when it begins anew, in microseconds of Unix time; 0 for other counters.
    floor: of a budget, units that are known to be used, if the counter was lost.
    """

    counter: str
    limit: int
    period: int = MINUTE
    amount: int = 1
    needed: int = 1
    until: int = 0
    floor: int = 0

    @property
    def scale(self) -> int:
        """Counters count in units times the period, so that refills are integers."""
        return self.period or 1

    @property
    def is_hold(self) -> bool:
        """Whether its units are given back at the end of the request."""
        return not self.period and not self.until


class CounterState(Struct, frozen=True):
    """A counter at one time.

    used: units, rounded up; may be above the limit.
    remaining: whole units; 0 also where it is negative.
    reset_after: microseconds until it is full, if nothing is taken.
    """

    counter: str
    limit: int
    used: int
    remaining: int
    reset_after: int


class UnmetDemand(Struct, frozen=True):
    """The demand that cannot be met now.

    retry_after: microseconds; 0 where only the end of a request helps, and for budgets.
    """

    demand: Demand
    state: CounterState
    retry_after: int


class Counters(Protocol):
    """Counters by key and name. Every method is atomic."""

    @property
    def is_shared(self) -> bool:
        """Whether `take` waits for a store that other processes use too."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def take(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        """Take all demands, or none and return the one with the longest wait."""
        ...

    def check(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        """Return what `take` would, as far as this process knows, without taking anything."""
        ...

    def add(self, key: str, demand: Demand) -> None:
        """Take `amount`, whatever is there; a negative amount gives back. A shared store applies it later."""
        ...

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        """The counters of these demands, as far as this process knows."""
        ...


class Counter:
    """One counter.

    used: units taken and not refilled, times `Demand.scale`.
    updated: microseconds.
    until: as in Demand.
    """

    __slots__ = ("until", "updated", "used")

    def __init__(self, updated: int, used: int = 0, until: int = 0) -> None:
        self.used, self.updated, self.until = used, updated, until

    def advance(self, demand: Demand, now: int) -> None:
        """Refill the counter, or begin a budget anew."""
        if demand.until:
            # A later end is the next day or month: the budget begins anew, whatever was used of the last one.
            if demand.until > self.until:
                self.used, self.until = 0, demand.until
            if demand.until == self.until:
                self.used = max(self.used, demand.floor)
            return
        if demand.period and now > self.updated:
            self.used = max(0, self.used - (now - self.updated) * demand.limit)
        if now > self.updated or now < self.updated - MAX_CLOCK_STEP:
            self.updated = now

    def add(self, demand: Demand) -> None:
        self.used = max(0, self.used + demand.amount * demand.scale)


class LocalCounters:
    """The counters of one process, as many as the file of keys has limits.

    read_clock: monotonic seconds.
    """

    is_shared = False

    def __init__(self, read_clock: Callable[[], float]) -> None:
        self._read_clock = read_clock
        self._counters: dict[tuple[str, str], Counter] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def take(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        unmet = self.check(key, demands)
        if unmet is None:
            for demand in demands:
                self._counters[key, demand.counter].add(demand)
        return unmet

    def check(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        now = self._now()
        return find_unmet(demands, [self._find(key, demand, now).used for demand in demands])

    def add(self, key: str, demand: Demand) -> None:
        self._find(key, demand, self._now()).add(demand)

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        now = self._now()
        return tuple(build_state(demand, self._find(key, demand, now).used) for demand in demands)

    def replace(self, key: str, demand: Demand, used: int) -> None:
        """Set a counter to what is known from elsewhere. used: as in Counter."""
        self._counters[key, demand.counter] = Counter(self._now(), used, demand.until)

    def _now(self) -> int:
        return round(self._read_clock() * 1_000_000)

    def _find(self, key: str, demand: Demand, now: int) -> Counter:
        """The counter, refilled until now."""
        counter = self._counters.get((key, demand.counter))
        if counter is None:
            counter = self._counters[key, demand.counter] = Counter(now)
        counter.advance(demand, now)
        return counter


def is_met(demand: Demand, used: int) -> bool:
    # A request that needs more than a whole bucket is admitted by a full one. A budget of 0 admits none.
    needed = min(demand.needed, demand.limit) if demand.period else demand.needed
    return demand.limit * demand.scale - used >= needed * demand.scale


def find_unmet(demands: Sequence[Demand], used: Sequence[int]) -> UnmetDemand | None:
    """Find the demand with the longest wait of those that cannot be met; budgets first. used: as in Counter."""
    unmet: list[UnmetDemand] = []
    for demand, used_units in zip(demands, used, strict=True):
        if is_met(demand, used_units):
            continue
        retry_after = 0
        if demand.period:
            missing = used_units - (demand.limit - min(demand.needed, demand.limit)) * demand.period
            retry_after = -(-missing // demand.limit)
        unmet.append(UnmetDemand(demand, build_state(demand, used_units), retry_after))
    # A client that waits for the shorter one would only be rejected again.
    return max(unmet, key=lambda candidate: (candidate.demand.until, candidate.retry_after), default=None)


def build_state(demand: Demand, used: int) -> CounterState:
    scale = demand.scale
    remaining = max(0, (demand.limit * scale - used) // scale)
    # `used` is in units times the period, so this is already in microseconds; rounded up, as is every wait.
    reset_after = -(-used // demand.limit) if demand.period else 0
    return CounterState(demand.counter, demand.limit, -(-used // scale), remaining, reset_after)
