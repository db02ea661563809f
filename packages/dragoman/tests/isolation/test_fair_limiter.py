"""Turns of owners at a limited number of places."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.isolation.fair_limiter import FairLimiter
from dragoman.isolation.fair_threads import FairThreads


class Jobs:
    """Jobs that run until they are ended, in the order of their start."""

    def __init__(self, places: int, per_owner: int | None = None) -> None:
        self.limiter = FairLimiter(places, per_owner)
        self.running: list[str] = []
        self.started: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def run(self, name: str) -> None:
        async with self.limiter.hold(name[0]):
            self.running.append(name)
            self.started.append(name)
            await self._ends.setdefault(name, asyncio.Event()).wait()
            self.running.remove(name)

    async def submit(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.run(name)) for name in names]
        await settle()
        return tasks

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await settle()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("places", [1, 2, 4])
async def test_flood_delays_other_owner_by_one_job(places: int):
    jobs = Jobs(places)
    flood = await jobs.submit(*(f"b{number}" for number in range(60)))
    other = await jobs.submit("a0", "a1")
    assert len(jobs.running) == places
    await jobs.end(jobs.running[0])
    assert jobs.started[places:] == ["a0"]
    await jobs.end("a0")
    # With several places a holds fewer than b, so a is next again.
    expected = "b1" if places == 1 else "a1"
    assert jobs.started[-1] == expected
    for task in (*flood, *other):
        task.cancel()
    await asyncio.gather(*flood, *other, return_exceptions=True)


async def test_owner_at_its_limit_leaves_places_to_others():
    jobs = Jobs(4, per_owner=2)
    flood = await jobs.submit(*(f"b{number}" for number in range(9)))
    assert jobs.running == ["b0", "b1"]
    other = await jobs.submit("a0")
    assert jobs.running == ["b0", "b1", "a0"]
    await jobs.end("b1")
    assert jobs.running == ["b0", "a0", "b2"]
    for task in (*flood, *other):
        task.cancel()
    await asyncio.gather(*flood, *other, return_exceptions=True)


async def test_threads_run_other_owners_work_beside_flood():
    threads = FairThreads(8, per_owner=1)
    finish = threading.Event()
    flood = [asyncio.create_task(threads.run("b", finish.wait)) for _ in range(20)]
    await settle()
    try:
        assert await threads.run("a", lambda: "done") == "done"
        assert not any(task.done() for task in flood)
    finally:
        finish.set()
    assert await asyncio.gather(*flood) == [True] * 20


async def test_owners_take_turns():
    jobs = Jobs(1)
    tasks = await jobs.submit("b0", "b1", "b2", "a0", "a1", "c0")
    while jobs.running:
        await jobs.end(jobs.running[0])
    assert jobs.started == ["b0", "a0", "c0", "b1", "a1", "b2"]
    await asyncio.gather(*tasks)


async def test_returning_owner_waits_for_others():
    jobs = Jobs(1)
    tasks = await jobs.submit("b0", "b1", "b2", "a0", "c0")
    for number in range(1, 4):
        await jobs.end(jobs.running[0])
        ended = jobs.started[-2][0]
        if ended != "b":
            tasks += await jobs.submit(f"{ended}{number}")
    while jobs.running:
        await jobs.end(jobs.running[0])
    assert [name[0] for name in jobs.started][:6] == ["b", "a", "c", "b", "a", "c"]
    await asyncio.gather(*tasks)


async def test_cancelled_waiter_takes_no_place():
    jobs = Jobs(1)
    first, second, third = await jobs.submit("b0", "b1", "b2")
    second.cancel()
    await settle()
    await jobs.end("b0")
    assert jobs.started == ["b0", "b2"]
    await jobs.end("b2")
    await asyncio.gather(first, third)
    await jobs.submit("a0")
    assert jobs.running == ["a0"]
    await jobs.end("a0")


async def test_job_of_two_owners_runs_in_first_turn():
    limiter = FairLimiter(1)
    held = limiter.enter("c")
    queued = [limiter.enter("b") for _ in range(5)]
    shared = queued[-1]
    shared.join("a")
    held.leave()
    await asyncio.wait_for(queued[0].wait(), 60)
    queued[0].leave()
    await asyncio.wait_for(shared.wait(), 60)
    shared.leave()
    # It left all of its queues.
    for place in queued[1:-1]:
        await asyncio.wait_for(place.wait(), 60)
        place.leave()
    await asyncio.wait_for(limiter.enter("d").wait(), 60)
