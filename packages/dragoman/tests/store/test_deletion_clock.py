"""The time of deletions beside a wall clock that jumps."""

from __future__ import annotations

import pytest

from dragoman.store import Bounds, MemoryStore
from dragoman.store.deletion_clock import HOLD_SECONDS, TOLERANCE_SECONDS, DeletionClock

from .backends import key, put


class TwoClocks:
    """A wall clock and a monotonic one."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.monotonic = 7.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def build(self) -> DeletionClock:
        return DeletionClock(lambda: self.wall, lambda: self.monotonic)


def test_deletion_clock_follows_steady_clock() -> None:
    clocks = TwoClocks()
    clock = clocks.build()
    for _ in range(100):
        clocks.pass_time(86400)
        # It is corrected a little, day by day.
        clocks.wall += 1
        assert clock.read() == clocks.wall


@pytest.mark.parametrize("jump", [TOLERANCE_SECONDS + 1, 86400 * 30, 86400 * 365 * 70])
def test_deletion_clock_ignores_jump_for_an_hour(jump: float) -> None:
    clocks = TwoClocks()
    clock = clocks.build()
    start = clocks.wall
    clocks.wall += jump
    assert clock.read() == start
    clocks.pass_time(HOLD_SECONDS - 1)
    assert clock.read() == start + HOLD_SECONDS - 1
    clocks.pass_time(1)
    assert clock.read() == clocks.wall


@pytest.mark.parametrize("jump", [-1.0, -3600, -86400 * 365 * 20])
def test_deletion_clock_follows_jump_back(jump: float) -> None:
    clocks = TwoClocks()
    clock = clocks.build()
    clocks.wall += jump
    assert clock.read() == clocks.wall
    # Back to the right time: a jump forward again.
    clocks.wall -= jump
    expected = clocks.wall if -jump <= TOLERANCE_SECONDS else clocks.wall + jump
    assert clock.read() == expected


async def test_memory_store_clock_set_forward_deletes_nothing() -> None:
    clocks = TwoClocks()
    store = MemoryStore(Bounds(ttl=60), now=lambda: clocks.wall, monotonic=lambda: clocks.monotonic)
    await put(store, "a")
    clocks.wall += 10**8
    assert await store.clean() == 0
    clocks.wall -= 10**8
    assert await store.get(key("a")) is not None
    clocks.pass_time(61)
    assert await store.clean() == 1
