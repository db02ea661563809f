"""A condition without a lock, on which tasks wait."""

from __future__ import annotations

import asyncio


class Wakeup:
    """A condition without a lock: `notify_all` wakes the tasks that wait at that
    moment.

    It holds no container while no task waits.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # A tuple: the empty one is a constant of the interpreter.
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    async def wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters += (waiter,)
        try:
            await waiter
        finally:
            if waiter.cancelled():
                self._waiters = tuple(other for other in self._waiters if other is not waiter)

    def notify_all(self) -> None:
        waiters = self._waiters
        self._waiters = ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
