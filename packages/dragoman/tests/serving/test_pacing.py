"""Concurrent requests are started a few at a time, in order, and other callbacks run in
between.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from dragoman.serving.service import StartLimiter


async def begin(turns: StartLimiter, number: int, begun: list[int]) -> None:
    if (turn := turns.acquire()) is not None:
        await turn
    begun.append(number)


async def test_start_limiter_starts_few_per_turn_in_order() -> None:
    turns = StartLimiter(starts_per_turn=3)
    begun = list[int]()
    tasks = [asyncio.create_task(begin(turns, number, begun)) for number in range(20)]
    counts = [0]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        counts.append(len(begun))
    assert begun == list(range(20))
    assert max(after - before for before, after in pairwise(counts)) == 3


async def test_start_limiter_single_request_does_not_wait() -> None:
    turns = StartLimiter(starts_per_turn=1)
    begun = list[int]()
    for number in range(3):
        with pytest.raises(StopIteration):
            begin(turns, number, begun).send(None)
        assert begun == list(range(number + 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_start_limiter_cancelled_waiter_uses_no_slot() -> None:
    turns = StartLimiter(starts_per_turn=1)
    begun = list[int]()
    tasks = [asyncio.create_task(begin(turns, number, begun)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [0, 1, 3]
