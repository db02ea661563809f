"""Event loops whose clock jumps to the next timer, or when a test says so: tests do not
wait, and every run is deterministic.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that advances its clock instead of waiting. Without a timer it waits,
    for a thread.
    """

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events and timeout > 0:
            self.now += timeout
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping_selector = _JumpingSelector()
        super().__init__(self._jumping_selector)
        # asyncio runs timers that are due within the clock's resolution.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping_selector.now


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop with sockets, whose timers are due when a test says so.

    skipped: seconds that its clock is ahead.
    """

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


class VirtualClock:
    """A `serving.clock.Clock` of the running loop."""

    def now(self) -> float:
        return 1_800_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def run_skipping_time(work: Callable[[SkippingLoop], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SkippingLoop)
        return runner.run(work(loop))
