"""Waking whoever waits."""

from __future__ import annotations

import asyncio

from dragoman.http.context import Wakeup


async def test_a_bell_wakes_all_that_wait_and_nobody_later() -> None:
    bell = Wakeup()
    bell.notify_all()
    waiting = [asyncio.create_task(bell.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    bell.notify_all()
    await asyncio.gather(*waiting[1:])
    assert waiting[0].cancelled() or (await asyncio.wait([waiting[0]]))[0]


async def test_who_stops_waiting_is_forgotten() -> None:
    bell = Wakeup()
    for _ in range(3):
        task = asyncio.create_task(bell.wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    other = asyncio.create_task(bell.wait())
    await asyncio.sleep(0)
    assert len(bell._waiters) == 1  # pyright: ignore[reportPrivateUsage]
    bell.notify_all()
    await other
