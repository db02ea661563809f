"""Waking whoever waits, at no cost while nobody does."""

from __future__ import annotations

import asyncio


class Bell:
    """As `asyncio.Event` without a memory: only those who wait when it rings are woken."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: tuple[asyncio.Future[None], ...] = ()

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting += (waiter,)
        try:
            await waiter
        finally:
            if waiter.cancelled():
                self._waiting = tuple(other for other in self._waiting if other is not waiter)

    def ring(self) -> None:
        waiting, self._waiting = self._waiting, ()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
