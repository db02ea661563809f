"""Few requests are begun in one turn of the event loop, so that many that come at once leave the others' tokens their
time: to read, render and admit a request costs as much as some thirty tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque

STARTS_PER_TURN = 4


class StartLimiter:
    """First come, first served. at_once: how many a turn of the loop."""

    def __init__(self, starts_per_turn: int = STARTS_PER_TURN) -> None:
        self._starts_per_turn = self._available = starts_per_turn
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def acquire(self) -> None:
        """Returns in a turn in which there is room; at once if this is one."""
        loop = asyncio.get_running_loop()
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._on_loop_turn, loop)
        if self._available and not self._waiters:
            self._available -= 1
            return
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _on_loop_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._available = self._starts_per_turn
        while self._waiters and self._available:
            waiter = self._waiters.popleft()
            if not waiter.done():  # it is if whoever waited was cancelled
                waiter.set_result(None)
                self._available -= 1
        self._is_scheduled = bool(self._waiters) or self._available < self._starts_per_turn
        if self._is_scheduled:
            loop.call_soon(self._on_loop_turn, loop)
