"""Few requests are begun in one turn of the event loop, so that many that come at once leave the others' tokens their
time: to read, render and admit a request costs as much as some thirty tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 4


class Turns:
    """First come, first served. at_once: how many a turn of the loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def take(self) -> None:
        """Returns in a turn in which there is room; at once if this is one."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn, loop)
        if self._left and not self._waiting:
            self._left -= 1
            return
        room: asyncio.Future[None] = loop.create_future()
        self._waiting.append(room)
        await room

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = self._at_once
        while self._waiting and self._left:
            room = self._waiting.popleft()
            if not room.done():  # it is if whoever waited was cancelled
                room.set_result(None)
                self._left -= 1
        self._turning = bool(self._waiting) or self._left < self._at_once
        if self._turning:
            loop.call_soon(self._turn, loop)
