"""Limits that several processes share are exact in every store: they are compared with
a model in fractions, on a clock that tests advance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dragoman.tenants.apply_batch import Holder
from dragoman.tenants.counters import MINUTE, Demand, UnmetDemand
from dragoman.tenants.limits_store import Batch, BatchResult, LimitsStore, LimitsStoreUnavailable
from dragoman.tenants.shared_counters import SharedCounters

from .backends import ManualClock, MemoryLimits, SharedStorage

T = TypeVar("T")
LEASE = 30 * 1_000_000
DAY = 86_400 * 1_000_000


@dataclass
class Connection:
    """A process's connection.

    broken: `sent` loses the response of the next batch, `lost` the batch itself.
    """

    store: LimitsStore
    broken: str = ""
    batches: int = 0

    async def open(self) -> None:
        await self.store.open()

    async def close(self) -> None:
        await self.store.close()

    async def apply(self, batch: Batch) -> BatchResult:
        broken = self.broken
        self.broken = ""
        self.batches += 1
        if broken == "lost":
            raise LimitsStoreUnavailable("the batch was lost")
        result = await self.store.apply(batch)
        if broken == "sent":
            raise LimitsStoreUnavailable("the response was lost")
        return result


@dataclass
class Process:
    """A process.

    places: the slots that it holds.
    expires: when its slots are freed, unless it renews its lease.
    """

    connection: Connection
    counters: SharedCounters
    places: int = 0
    expires: int = 0
    suspended: bool = False

    async def kill(self) -> None:
        """Kill the process: its store is not notified."""
        task: Any = self.counters._task  # pyright: ignore[reportPrivateUsage]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.connection.close()


@dataclass
class Limits:
    requests: int
    tokens: int
    places: int
    budget: int
    level: dict[str, Fraction] = field(default_factory=dict[str, Fraction])
    used_today: int = 0


class SharedLimits(RuleBasedStateMachine):
    """Processes that share the limits of one key, beside a model in fractions without a
    store.
    """

    def __init__(self, storage: SharedStorage) -> None:
        super().__init__()
        storage.reset()
        self.storage = storage
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.processes: list[Process] = []
        self.dead: list[tuple[int, int]] = []
        """(places, when they are free) of killed processes."""
        self.until = self.clock.unix() + DAY

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def start_process(self) -> Process:
        connection = Connection(self.storage.make(self.clock))
        process = Process(
            connection, SharedCounters(connection, self.clock, lease=LEASE / 1_000_000)
        )
        self.run(process.counters.open())
        return process

    @initialize(
        requests=st.integers(1, 50),
        tokens=st.integers(1, 5000) | st.just(10**15),
        places=st.integers(1, 5),
        budget=st.integers(0, 20_000),
    )
    def start(self, requests: int, tokens: int, places: int, budget: int) -> None:
        self.limits = Limits(requests, tokens, places, budget)
        self.limits.level = {"requests": Fraction(requests), "tokens": Fraction(tokens)}
        self.processes = [self.start_process() for _ in range(3)]

    def pick(self, number: int) -> Process:
        process = self.processes[number]
        if process.suspended:
            # Its next batch finds that the lease has expired, and its slots count
            # again.
            process.suspended = False
        return process

    def contact(self, process: Process) -> None:
        process.expires = self.clock.microseconds + LEASE

    def build_demands(self, amount: int) -> list[Demand]:
        limits = self.limits
        return [
            Demand("requests", limits.requests),
            Demand("tokens", limits.tokens, amount=amount, needed=max(1, amount)),
            Demand("places", limits.places, period=0),
            Demand("day", limits.budget, period=0, amount=0, until=self.until),
        ]

    def count_places(self) -> int:
        now = self.clock.microseconds
        return sum(process.places for process in self.processes if process.expires > now) + sum(
            places for places, expires in self.dead if expires > now
        )

    @rule(number=st.integers(0, 2), amount=st.integers(0, 6000))
    def ask(self, number: int, amount: int) -> None:
        process = self.pick(number)
        limits = self.limits
        self.run(process.counters.renew())
        self.contact(process)
        fits = (
            limits.level["requests"] >= 1
            and limits.level["tokens"] >= min(max(1, amount), limits.tokens)
            and self.count_places() < limits.places
            and limits.used_today < limits.budget
        )
        unmet = self.run(process.counters.take("key", self.build_demands(amount)))
        assert (unmet is None) is fits
        if unmet is None:
            limits.level["requests"] -= 1
            limits.level["tokens"] -= amount
            process.places += 1
        elif unmet.demand.period:
            self.check_wait(unmet)
        self.check_state(process)

    def check_wait(self, unmet: UnmetDemand) -> None:
        """Check that the request is admitted after exactly this wait, to the
        microsecond.
        """
        demand = unmet.demand
        missing = min(demand.needed, demand.limit) - self.limits.level[demand.counter]
        assert unmet.retry_after - 1 < missing * Fraction(MINUTE, demand.limit) <= unmet.retry_after

    def check_state(self, process: Process) -> None:
        """Check that this process's response headers show the state of the store."""
        for state in process.counters.peek("key", self.build_demands(0)[:2]):
            level = self.limits.level[state.counter]
            assert state.remaining == max(0, level // 1)
            assert (
                state.reset_after - 1
                < (state.limit - level) * Fraction(MINUTE, state.limit)
                <= state.reset_after
            )

    @rule(
        number=st.integers(0, 2),
        amount=st.integers(-3000, 3000),
        broken=st.sampled_from(["", "", "sent", "lost"]),
    )
    def settle_tokens(self, number: int, amount: int, broken: str) -> None:
        """Charge or refund tokens; each change is applied once, whatever happens to the
        connection.
        """
        process = self.pick(number)
        limits = self.limits
        process.connection.broken = broken
        process.counters.add("key", Demand("tokens", limits.tokens, amount=amount))
        process.counters.add(
            "key", Demand("day", limits.budget, period=0, amount=abs(amount), until=self.until)
        )
        self.run(process.counters.settle())
        self.run(process.counters.renew())
        self.contact(process)
        limits.level["tokens"] = min(Fraction(limits.tokens), limits.level["tokens"] - amount)
        limits.used_today += abs(amount)

    @rule(number=st.integers(0, 2), broken=st.sampled_from(["", "", "sent", "lost"]))
    def end(self, number: int, broken: str) -> None:
        process = self.pick(number)
        if not process.places:
            return
        process.connection.broken = broken
        process.counters.add("key", Demand("places", self.limits.places, period=0, amount=-1))
        process.places -= 1
        self.run(process.counters.settle())
        self.run(process.counters.renew())
        self.contact(process)

    @rule(number=st.integers(0, 2), amount=st.integers(0, 100))
    def cancel(self, number: int, amount: int) -> None:
        """A request whose client disconnects while it waits for the store is not
        charged.
        """
        process = self.pick(number)

        async def ask_and_leave() -> None:
            task = asyncio.create_task(process.counters.take("key", self.build_demands(amount)))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await process.counters.settle()

        self.run(process.counters.renew())
        self.run(ask_and_leave())
        self.contact(process)

    @rule(number=st.integers(0, 2))
    def kill(self, number: int) -> None:
        process = self.processes[number]
        self.run(process.kill())
        self.dead.append((process.places, process.expires))
        self.processes[number] = self.start_process()

    @rule(number=st.integers(0, 2))
    def suspend(self, number: int) -> None:
        """Suspend a process: it does not renew its lease until it is used again."""
        self.processes[number].suspended = True

    @rule(number=st.integers(0, 2))
    def restart(self, number: int) -> None:
        """Restart a process gracefully: its slots are free at once."""
        self.run(self.processes[number].counters.close())
        self.processes[number] = self.start_process()

    @rule(microseconds=st.integers(0, 90_000_000))
    def wait(self, microseconds: int) -> None:
        while microseconds:
            step = min(microseconds, LEASE // 2)
            microseconds -= step
            self.clock.microseconds += step
            for name, limit in (("requests", self.limits.requests), ("tokens", self.limits.tokens)):
                refilled = self.limits.level[name] + Fraction(limit * step, MINUTE)
                self.limits.level[name] = min(Fraction(limit), refilled)
            for process in self.processes:
                if not process.suspended:
                    self.run(process.counters.renew())
                    self.contact(process)

    @rule()
    def begin_day(self) -> None:
        self.until += DAY
        self.limits.used_today = 0

    @invariant()
    def nothing_fails(self) -> None:
        assert not any(process.counters.is_failing for process in self.processes)

    def teardown(self) -> None:
        for process in self.processes:
            self.run(process.counters.close())
        self.runner.close()


def test_shared_limits_match_reference_model(storage: SharedStorage) -> None:
    # Each example takes up to 50 steps, and the four stores repeat the same ones.
    examples = min(30, settings().max_examples // 3)
    run_state_machine_as_test(
        lambda: SharedLimits(storage),  # pyright: ignore[reportArgumentType]
        settings=settings(max_examples=examples),
    )


async def test_shared_counters_idle_process_keeps_its_holder() -> None:
    clock = ManualClock()
    holders: dict[str, Holder] = {}
    counters = SharedCounters(MemoryLimits(clock, {}, holders), clock)
    await counters.open()
    place = Demand("concurrency", 1, 0)
    for _ in range(100):
        # Longer than the lease, which nobody renews without places.
        clock.microseconds += 2 * LEASE
        assert await counters.take("key", (place,)) is None
        assert await counters.take("key", (place,)) is not None
        counters.add("key", msgspec.structs.replace(place, amount=-1))
        await counters.settle()
    assert len(holders) == 1
    holders.clear()
    assert await counters.take("key", (place,)) is None
    assert await counters.take("key", (place,)) is not None
    await counters.close()
