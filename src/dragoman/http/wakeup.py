"""A notification primitive that costs nothing while no task waits."""

from __future__ import annotations

import asyncio


class Wakeup:
    """A stateless `asyncio.Event`: wakes only the tasks that wait when `notify_all` is called."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # The empty tuple is a constant of the interpreter: a connection without waiting tasks holds no container.
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
        waiters, self._waiters = self._waiters, ()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
