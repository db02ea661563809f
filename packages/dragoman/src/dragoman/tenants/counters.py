"""Counters of limits: token buckets, concurrency and budgets. A request takes from all
of its counters or from none.

A bucket holds `limit` units and refills continuously, by `limit` units per period. So
at most `limit * (1 + T / period)` units are taken in any time T, and a key that was
idle for a period may use its whole limit at once. All numbers are integers (times in
microseconds), so nothing is rounded: a rejected request would be accepted exactly
`retry_after` later.

`Counters` is the interface. `LocalCounters` counts in one process,
`shared_counters.SharedCounters` across several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

MINUTE = 60_000_000
"""Microseconds."""
MAX_CLOCK_STEP = MINUTE
"""Microseconds by which a clock may be behind the last reading, since the clocks of
machines differ. A clock that is further behind was set back: its reading is accepted.
"""


class Demand(Struct, frozen=True):
    """The units that a request takes from one counter of its key.

    counter: the counter's name, such as `requests`.
    limit: units; may change between two calls.
    period: microseconds in which the limit refills; 0 for budgets, and for units that
        are given back (concurrency).
    amount: units to take.
    needed: units that must be available. If `amount` is larger, the counter is
        overdrawn until it has refilled.
    until: for a budget, the end of its day or month, in microseconds of Unix time; 0
        for other counters.
    floor: for a budget, units that are known to be used even if the counter was lost.
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
        """Factor by which counters multiply units: the period, so that refills are
        integers.
        """
        return self.period or 1

    @property
    def is_hold(self) -> bool:
        """Whether its units are given back at the end of the request."""
        return not self.period and not self.until


class CounterState(Struct, frozen=True):
    """The state of a counter at one time.

    used: used units, rounded up; may exceed the limit.
    remaining: available units, rounded down; 0 if overdrawn.
    reset_after: microseconds until the limit is fully available, if nothing is taken.
    """

    counter: str
    limit: int
    used: int
    remaining: int
    reset_after: int


class UnmetDemand(Struct, frozen=True):
    """A demand that cannot be met now.

    state: state of its counter.
    retry_after: microseconds until it can be met; 0 for concurrency, where the time is
        unknown, and for budgets.
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
        """Take all demands and return None; or take none, and return the unmet demand
        with the longest wait.
        """
        ...

    def check(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        """Return what `take` would return, as far as this process knows, without taking
        anything.
        """
        ...

    def add(self, key: str, demand: Demand) -> None:
        """Take `amount` without checking the limit; a negative amount gives back.
        Shared counters apply it later.
        """
        ...

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        """Return the states of these demands' counters, as far as this process knows."""
        ...


class Counter:
    """One counter.

    used: units taken and not refilled, times `Demand.scale`.
    updated: time of the last refill, in microseconds.
    until: end of a budget's current day or month, as in `Demand`.
    """

    __slots__ = ("until", "updated", "used")

    def __init__(self, updated: int, used: int = 0, until: int = 0) -> None:
        self.used = used
        self.updated = updated
        self.until = until

    def advance(self, demand: Demand, now: int) -> None:
        """Refill the counter, or reset a budget whose day or month has ended."""
        if demand.until:
            # A later end means that the next day or month has begun.
            if demand.until > self.until:
                self.used = 0
                self.until = demand.until
            if demand.until == self.until:
                self.used = max(self.used, demand.floor)
            return
        if demand.period and now > self.updated:
            self.used = max(0, self.used - (now - self.updated) * demand.limit)
        if now > self.updated or now < self.updated - MAX_CLOCK_STEP:
            self.updated = now

    def add(self, demand: Demand) -> None:
        used = self.used + demand.amount * (demand.period or 1)
        self.used = used if used > 0 else 0


class LocalCounters:
    """Counters of one process. Their number is bounded by the number of limits in the
    keys file.

    read_clock: returns monotonic seconds.
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
        now = self._now()
        counters = [self._find(key, demand, now) for demand in demands]
        unmet = find_unmet(demands, [counter.used for counter in counters])
        if unmet is None:
            for demand, counter in zip(demands, counters, strict=True):
                if demand.amount:
                    counter.add(demand)
        return unmet

    def check(self, key: str, demands: Sequence[Demand]) -> UnmetDemand | None:
        now = self._now()
        return find_unmet(demands, [self._find(key, demand, now).used for demand in demands])

    def add(self, key: str, demand: Demand) -> None:
        self._find(key, demand, self._now()).add(demand)

    def peek(self, key: str, demands: Sequence[Demand]) -> tuple[CounterState, ...]:
        now = self._now()
        return tuple([build_state(demand, self._find(key, demand, now).used) for demand in demands])

    def replace(self, key: str, demand: Demand, used: int) -> None:
        """Set a counter to a value of another source.

        used: as in `Counter`.
        """
        self._counters[key, demand.counter] = Counter(self._now(), used, demand.until)

    def _now(self) -> int:
        return round(self._read_clock() * 1_000_000)

    def _find(self, key: str, demand: Demand, now: int) -> Counter:
        """Return the counter, refilled until `now`."""
        counter = self._counters.get((key, demand.counter))
        if counter is None:
            counter = self._counters[key, demand.counter] = Counter(now)
        counter.advance(demand, now)
        return counter


def is_met(demand: Demand, used: int) -> bool:
    # A full bucket admits a request that needs more than the bucket holds. A budget of
    # 0 admits none.
    needed = demand.needed
    if demand.period:
        needed = min(needed, demand.limit)
    return (demand.limit - needed) * (demand.period or 1) >= used


def find_unmet(demands: Sequence[Demand], used: Sequence[int]) -> UnmetDemand | None:
    """Return the unmet demand with the longest wait, budgets first; None if all can be
    met.

    used: used units of each demand's counter, as in `Counter`.
    """
    unmet: list[UnmetDemand] = []
    for demand, used_units in zip(demands, used, strict=True):
        if is_met(demand, used_units):
            continue
        retry_after = 0
        if demand.period:
            missing = used_units - (demand.limit - min(demand.needed, demand.limit)) * demand.period
            retry_after = -(-missing // demand.limit)
        unmet.append(UnmetDemand(demand, build_state(demand, used_units), retry_after))
    if not unmet:
        return None
    # A client that retries after a shorter wait would only be rejected again.
    return max(unmet, key=lambda candidate: (candidate.demand.until, candidate.retry_after))


def build_state(demand: Demand, used: int) -> CounterState:
    scale = demand.scale
    remaining = max(0, (demand.limit * scale - used) // scale)
    # `used` is in units times the period, so the quotient is in microseconds; rounded
    # up, as every wait is.
    reset_after = -(-used // demand.limit) if demand.period else 0
    return CounterState(demand.counter, demand.limit, -(-used // scale), remaining, reset_after)
