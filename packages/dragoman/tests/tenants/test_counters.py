"""Limits are exact: they are compared with a model in fractions, on a clock that tests
advance.
"""

from __future__ import annotations

from collections.abc import Coroutine
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dragoman.tenants.counters import MINUTE, Demand, LocalCounters, UnmetDemand


class ManualClock:
    """A clock in seconds that tests advance. It counts microseconds, so that sums are
    exact.
    """

    def __init__(self) -> None:
        self.microseconds = 0

    def __call__(self) -> float:
        return self.microseconds / 1_000_000


class Limits(RuleBasedStateMachine):
    """Two buckets and a concurrency limit of one key, beside a straightforward model in
    fractions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.counters = LocalCounters(self.clock)
        self.taken: list[tuple[int, int, int]] = []
        """(time, requests, tokens) of what was admitted; tokens may follow, or be given
        back.
        """

    @initialize(requests=st.integers(1, 50), tokens=st.integers(1, 5000), places=st.integers(1, 4))
    def start(self, requests: int, tokens: int, places: int) -> None:
        self.requests = requests
        self.tokens = tokens
        self.places = places
        self.level = {"requests": Fraction(requests), "tokens": Fraction(tokens)}
        self.running = 0

    @rule(seconds=st.integers(0, 90_000_000))
    def wait(self, seconds: int) -> None:
        self.clock.microseconds += seconds
        for name, limit in (("requests", self.requests), ("tokens", self.tokens)):
            self.level[name] = min(
                Fraction(limit), self.level[name] + Fraction(limit * seconds, MINUTE)
            )

    @rule(amount=st.integers(0, 6000))
    def ask(self, amount: int) -> None:
        needed = max(1, amount)
        demands = [
            Demand("requests", self.requests),
            Demand("tokens", self.tokens, amount=amount, needed=needed),
            Demand("places", self.places, period=0),
        ]
        fits = (
            self.level["requests"] >= 1
            and self.level["tokens"] >= min(needed, self.tokens)
            and self.running < self.places
        )
        rejection = run_now(self.counters.take("key", demands))
        assert (rejection is None) is fits
        if rejection is None:
            self.level["requests"] -= 1
            self.level["tokens"] -= amount
            self.running += 1
            self.taken.append((self.clock.microseconds, 1, amount))
        elif rejection.demand.period:
            # Exactly then, to the microsecond.
            name = rejection.demand.counter
            demand = rejection.demand
            rate = Fraction(demand.limit, MINUTE)
            missing = min(demand.needed, demand.limit) - self.level[name]
            assert rejection.retry_after - 1 < missing / rate <= rejection.retry_after

    @rule(amount=st.integers(1, 3000))
    def charge(self, amount: int) -> None:
        """Charge generated tokens, even beyond the limit."""
        self.counters.add("key", Demand("tokens", self.tokens, amount=amount))
        self.level["tokens"] -= amount
        self.taken.append((self.clock.microseconds, 0, amount))

    @rule()
    def end(self) -> None:
        if self.running:
            self.counters.add("key", Demand("places", self.places, period=0, amount=-1))
            self.running -= 1

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "level"):
            return
        demands = [Demand("requests", self.requests), Demand("tokens", self.tokens)]
        for state in self.counters.peek("key", demands):
            level = self.level[state.counter]
            assert state.remaining == max(0, level // 1)
            assert (
                state.reset_after - 1
                < (state.limit - level) * Fraction(MINUTE, state.limit)
                <= state.reset_after
            )

    def teardown(self) -> None:
        """Never more is admitted than the bucket's capacity and its refill."""
        for start, (first, _, _) in enumerate(self.taken):
            admitted = 0
            for time, requests, _ in self.taken[start:]:
                admitted += requests
                assert admitted <= self.requests + Fraction(self.requests * (time - first), MINUTE)


TestLimits = Limits.TestCase


@given(
    limits=st.lists(st.integers(1, 100), min_size=2, max_size=2), seconds=st.integers(0, 60_000_000)
)
def test_local_counters_limit_change_keeps_usage(limits: list[int], seconds: int) -> None:
    """A reload of the key file does not reset limits per minute."""
    clock = ManualClock()
    counters = LocalCounters(clock)
    before, after = (Demand("requests", limit) for limit in limits)
    for _ in range(limits[0]):
        assert run_now(counters.take("key", [before])) is None
    assert run_now(counters.take("key", [before])) is not None
    (state,) = counters.peek("key", [after])
    assert state.remaining == max(0, limits[1] - limits[0])


def test_local_counters_take_is_atomic_over_demands() -> None:
    counters = LocalCounters(ManualClock())
    one = Demand("requests", 1)
    many = Demand("tokens", 10, amount=5, needed=5)
    assert run_now(counters.take("key", [one, many])) is None
    rejection = run_now(counters.take("key", [one, many]))
    assert rejection is not None
    assert rejection.demand.counter == "requests"
    assert [state.remaining for state in counters.peek("key", [one, many])] == [0, 5]


def test_keys_do_not_share_counters() -> None:
    counters = LocalCounters(ManualClock())
    assert run_now(counters.take("a", [Demand("requests", 1)])) is None
    assert run_now(counters.take("b", [Demand("requests", 1)])) is None


def run_now(work: Coroutine[None, None, UnmetDemand | None]) -> UnmetDemand | None:
    """Return the result of a coroutine that never waits: the rules of a state machine
    cannot be coroutines.
    """
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the counters of one process wait for nothing")
