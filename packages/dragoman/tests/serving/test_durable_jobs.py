"""Which of the waiting jobs a process claims."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.isolation.fair_limiter import FairLimiter
from dragoman.serving.durable_jobs import CLAIMABLE, JOBS_PER_OWNER, JobRunner
from dragoman.store import UNCLAIMED_RUN, Key, MemoryStore, Put, Record


async def test_job_behind_flood_of_other_key_is_claimed() -> None:
    store = MemoryStore()
    await store.open()
    for number in range(CLAIMABLE + 50):
        await store.commit(Put(Key("b", "job", f"b{number}"), 0, b"", run=UNCLAIMED_RUN))
    await store.commit(Put(Key("a", "job", "a"), 0, b"", run=UNCLAIMED_RUN))
    # Jobs that are only claimed need neither a service nor a client.
    absent: Any = None
    new_jobs = asyncio.Event()
    # The second round of claims does not wait for the timer.
    new_jobs.set()
    runner = JobRunner(absent, store, absent, "job", FairLimiter(1), new_jobs)
    started: list[str] = []
    has_a_started = asyncio.Event()

    async def process(record: Record, _: JobRunner) -> None:
        started.append(record.key.owner)
        if record.key.owner == "a":
            has_a_started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(runner.run(process))
    async with asyncio.timeout(60):
        await has_a_started.wait()
    assert started.count("b") == JOBS_PER_OWNER
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()
