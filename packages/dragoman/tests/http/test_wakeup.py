"""Waking all waiters."""

from __future__ import annotations

import asyncio

from dragoman.http.wakeup import Wakeup


async def test_wakeup_notifies_only_current_waiters() -> None:
    wakeup = Wakeup()
    wakeup.notify_all()
    waiting = [asyncio.create_task(wakeup.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    waiting[0].cancel()
    wakeup.notify_all()
    await asyncio.gather(*waiting[1:])
    assert waiting[0].cancelled() or (await asyncio.wait([waiting[0]]))[0]


async def test_wakeup_cancelled_waiter_is_removed() -> None:
    wakeup = Wakeup()
    for _ in range(3):
        task = asyncio.create_task(wakeup.wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    other = asyncio.create_task(wakeup.wait())
    await asyncio.sleep(0)
    assert len(wakeup._waiters) == 1  # pyright: ignore[reportPrivateUsage]
    wakeup.notify_all()
    await other
