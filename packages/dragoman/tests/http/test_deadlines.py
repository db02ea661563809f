"""Many deadlines share one timer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.http.wire import HEAD, answers, echo, serving

from dragoman.http.limits import HttpLimits
from dragoman.http.server_connection import Deadlines
from tests.virtual_time import SkippingLoop, run_skipping_time


class VirtualTimerLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that timers need, with a virtual clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.set = 0

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, **_: Any
    ) -> asyncio.TimerHandle:
        self.set += 1
        heapq.heappush(self._timers, (when, self.set, callback))
        return asyncio.TimerHandle(when, callback, args, self)

    def call_soon(self, callback: Callable[..., Any], *args: Any, **_: Any) -> asyncio.Handle:
        callback(*args)
        return asyncio.Handle(callback, args, self)

    def get_debug(self) -> bool:
        return False

    def pass_to(self, then: float) -> None:
        while self._timers and self._timers[0][0] <= then:
            self.now, _, callback = heapq.heappop(self._timers)
            callback()
        self.now = then


def test_deadline_fires_on_time_unless_cancelled() -> None:
    loop = VirtualTimerLoop()
    late = list[tuple[str, float]]()
    deadlines = Deadlines[str](loop, 10, lambda who: late.append((who, loop.now)))
    deadlines.start("a")
    loop.pass_to(3)
    deadlines.start("b")
    deadlines.start("c")
    loop.pass_to(5)
    deadlines.cancel("b")
    deadlines.cancel("nobody")
    loop.pass_to(9)
    deadlines.start("a")
    loop.pass_to(100)
    assert late == [("c", 13), ("a", 19)]
    deadlines.start("a")
    loop.pass_to(200)
    assert late[2:] == [("a", 110)]


def test_deadline_callback_may_cancel_and_restart_deadlines() -> None:
    loop = VirtualTimerLoop()
    late = list[str]()

    def is_late(who: str) -> None:
        late.append(who)
        deadlines.cancel("b")
        if len(late) < 3:
            deadlines.start(who)

    deadlines = Deadlines[str](loop, 10, is_late)
    deadlines.start("a")
    deadlines.start("b")
    loop.pass_to(100)
    assert late == ["a", "a", "a"]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_deadlines_behave_like_individual_timers(steps: list[tuple[int, str, bool]]) -> None:
    loop = VirtualTimerLoop()
    late = set[tuple[str, float]]()
    due = dict[str, float]()
    deadlines = Deadlines[str](loop, 7, lambda who: late.add((who, loop.now)))
    expected = set[tuple[str, float]]()
    for seconds, who, begins in [*steps, (100, "", False)]:
        loop.pass_to(loop.now + seconds)
        for each, when in list(due.items()):
            if when <= loop.now:
                expected.add((each, when))
                del due[each]
        if begins:
            deadlines.start(who)
            due[who] = loop.now + 7
        else:
            deadlines.cancel(who)
            due.pop(who, None)
    assert late == expected
    assert loop.set <= len(steps) * 2


def test_busy_loop_reads_input_before_deadline_expires() -> None:
    async def send_body_in_time(loop: SkippingLoop) -> bytes:
        async with serving(echo, HttpLimits(body=600)) as wire:
            head = b"POST / " + HEAD + b"connection: close\r\ncontent-length: 1\r\n\r\n"
            reader, writer = await wire.connect(head)
            while not wire.state.tasks:  # noqa: ASYNC110 - a server has no event for it
                await asyncio.sleep(0)
            loop.call_later(500, writer.write, b"x")
            # Both timers are due in the next iteration.
            loop.skipped += 1000
            async with asyncio.timeout(60):
                output = await reader.read(-1)
            writer.close()
            return output

    output = run_skipping_time(send_body_in_time)
    assert [each.status for each in answers(output)] == [200]
