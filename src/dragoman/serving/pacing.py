"""Rate limiting of request starts: only few start per event loop iteration, so that a burst of requests does not delay
tokens of running streams. Rendering and admitting a request costs as much as about thirty tokens; rejecting one costs
little, so what can reject it (authentication, validation, a full queue) comes first.
"""

from __future__ import annotations

import asyncio
from collections import deque

STARTS_PER_TURN = 4


class StartLimiter:
    """Limits request starts, first come, first served. starts_per_turn: per iteration of the event loop."""

    def __init__(self, starts_per_turn: int = STARTS_PER_TURN) -> None:
        self._starts_per_turn = self._available = starts_per_turn
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def acquire(self) -> None:
        """Wait for an iteration with capacity; returns immediately if this one has some."""
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
            if not waiter.done():  # a cancelled waiter is done
                waiter.set_result(None)
                self._available -= 1
        self._is_scheduled = bool(self._waiters) or self._available < self._starts_per_turn
        if self._is_scheduled:
            loop.call_soon(self._on_loop_turn, loop)
