"""Timers on a clock that counts milliseconds, as uvloop's does."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from math import ceil
from typing import Any

import pytest

from dragoman_sim.engine.timer_queue import TimerQueue
from tests.virtual_time import run_in_virtual_time


class VirtualSelector(selectors.DefaultSelector):
    """A selector that advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.milliseconds = self.n_waits = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is scheduled"
        if timeout:
            self.milliseconds += max(1, ceil(timeout * 1000 - 1e-6))
            self.n_waits += 1
        return super().select(0)


class MillisecondLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers round to the nearest millisecond."""

    def __init__(self, selector: VirtualSelector) -> None:
        self.virtual = selector
        self.n_timers = 0
        super().__init__(selector)

    def time(self) -> float:
        return self.virtual.milliseconds / 1000

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> asyncio.TimerHandle:
        self.n_timers += 1
        assert self.n_timers <= 1000, "the loop spins"
        now = self.time()
        return super().call_at(now + round((when - now) * 1000) / 1000, callback, *args, **kwargs)


@pytest.mark.parametrize("step", [0.02, 0.0201, 0.0204999, 0.0205, 0.0207, 0.001, 0.0333333])
def test_timer_queue_uses_one_timer_per_step(step: float) -> None:
    loop = MillisecondLoop(VirtualSelector())
    late: list[float] = []

    async def run() -> None:
        timers = TimerQueue()
        done = asyncio.Event()

        def tick(at: float) -> None:
            late.append(loop.time() - at)
            if len(late) < 50:
                timers.call_at(at + step, tick)
            else:
                done.set()

        timers.call_at(step, tick)
        await done.wait()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
    assert loop.n_timers == 50
    assert min(late) > -0.0006
    assert max(late) < 0.0006


def test_arrivals_of_one_iteration_run_together_in_the_next() -> None:
    async def run() -> None:
        timers = TimerQueue()
        ran: list[float] = []
        first = timers.arrive(None)
        timers.call_at(first, ran.append)
        earlier = timers.arrive(first - 1.0)
        timers.call_at(earlier, ran.append)
        assert timers.arrive(first + 1.0) == first
        assert ran == []
        await asyncio.sleep(0)
        assert (earlier, ran) == (first - 1.0, [earlier, first])
        timers.close()

    run_in_virtual_time(run())


def test_arrival_before_a_pause_runs_after_resume() -> None:
    async def run() -> None:
        timers = TimerQueue()
        ran: list[float] = []
        at = timers.arrive(None)
        timers.call_at(at, ran.append)
        timers.pause()
        await asyncio.sleep(1.0)
        assert ran == []
        timers.resume()
        await asyncio.sleep(0)
        assert ran == [at]
        assert timers.arrive(None) == at
        timers.close()

    run_in_virtual_time(run())
