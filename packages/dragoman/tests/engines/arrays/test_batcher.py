"""Concurrent calls share a thread: round robin, in order, and without affecting each
other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from dragoman.core.errors import EngineError, Overloaded, ProcessUnusable
from dragoman.engines.dynamic_batcher import Batcher


@asynccontextmanager
async def running(
    compute: Callable[[list[int]], list[int]], **bounds: int
) -> AsyncGenerator[Batcher[int, int]]:
    batcher: Batcher[int, int] = Batcher(compute, lambda _: 1, **bounds)  # pyright: ignore[reportArgumentType]
    await batcher.start()
    yield batcher
    await batcher.stop()


class ManualComputation:
    """A function that computes on demand, and records its batches."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.busy = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, batch: list[int]) -> list[int]:
        self.busy.set()
        assert self.open.wait(60)
        self.batches.append(batch)
        return [-input for input in batch]

    async def entered(self) -> None:
        await asyncio.to_thread(self.busy.wait, 10)


async def test_batcher_returns_results_in_input_order():
    async with running(lambda batch: [-each for each in batch], max_batch_tokens=3) as batcher:
        results = await asyncio.gather(*(batcher.run(range(n)) for n in range(1, 9)))
    assert results == [[-each for each in range(n)] for n in range(1, 9)]


async def test_batcher_long_call_does_not_block_short_call():
    gate = ManualComputation()
    async with running(gate, max_batch_tokens=2) as batcher:
        long = asyncio.create_task(batcher.run(range(100)))
        await gate.entered()
        short = asyncio.create_task(batcher.run([1000]))
        await asyncio.sleep(0)
        gate.open.set()
        assert (await short, len(await long)) == ([-1000], 100)
    assert 1000 in gate.batches[1]


async def test_batcher_failed_batch_fails_only_its_calls():
    def compute(batch: list[int]) -> list[int]:
        if 13 in batch:
            raise ValueError("unlucky")
        return batch

    async with running(compute, max_batch_tokens=1) as batcher:
        bad = asyncio.create_task(batcher.run([1, 13, 2]))
        good = asyncio.create_task(batcher.run([3, 4]))
        assert await good == [3, 4]
        with pytest.raises(EngineError):
            await bad
        assert await batcher.run([5]) == [5]


async def test_batcher_cancelled_call_stops_computing():
    gate = ManualComputation()
    async with running(gate, max_batch_tokens=1) as batcher:
        left = asyncio.create_task(batcher.run(range(50)))
        await gate.entered()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        gate.open.set()
        assert await batcher.run([7]) == [-7]
    assert sum(map(len, gate.batches)) <= 3


async def test_batcher_full_queue_is_overloaded_and_stop_fails_waiting():
    gate = ManualComputation()
    async with running(gate, max_batch_tokens=1, max_waiting=1) as batcher:
        first = asyncio.create_task(batcher.run([1, 2]))
        await gate.entered()
        with pytest.raises(Overloaded):
            await batcher.run([3])
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0)
        gate.open.set()
        await stopping
        with pytest.raises(EngineError):
            await first
    with pytest.raises(EngineError):
        await batcher.run([4])
    assert not batcher.health().ready


def raise_for_negative(batch: list[int]) -> list[int]:
    if min(batch) < 0:
        raise RuntimeError("index out of range")
    return batch


async def test_batcher_faulty_input_fails_only_its_call() -> None:
    gate = ManualComputation()

    def compute(batch: list[int]) -> list[int]:
        gate(batch)
        return raise_for_negative(batch)

    async with running(compute, probe=0) as batcher:
        first = asyncio.create_task(batcher.run([7]))
        await gate.entered()
        calls = [asyncio.create_task(batcher.run(inputs)) for inputs in ([1, 2], [3, -1], [4])]
        await asyncio.sleep(0)
        gate.open.set()
        results = await asyncio.gather(first, *calls, return_exceptions=True)
        assert batcher.health().ready
    assert [results[0], results[1], results[3]] == [[7], [1, 2], [4]]
    assert isinstance(results[2], EngineError)


async def test_batcher_dead_model_reports_failure_until_it_recovers() -> None:
    is_dead = False

    def compute(batch: list[int]) -> list[int]:
        if is_dead:
            raise RuntimeError("CUDA error: an illegal memory access")
        return batch

    async with running(compute, probe=0) as batcher:
        is_dead = True
        with pytest.raises(EngineError, match="failed"):
            await batcher.run([1])
        while batcher.health().ready:  # noqa: ASYNC110 - the thread reports it next
            await asyncio.sleep(0)
        assert batcher.health().failed
        with pytest.raises(Overloaded, match="restarted"):
            await batcher.run([1])
        await batcher.stop()
        with pytest.raises(ProcessUnusable, match="illegal memory access"):
            await batcher.start()
        is_dead = False
        await batcher.start()
        assert await batcher.run([1]) == [1]
        assert batcher.health().ready
