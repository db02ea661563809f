"""Where an engine's outputs wait for their one reader: a deque and one wake-up, no queue per token."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Both ends are on the event loop. Bounded by the sender: an answer has at most max_tokens outputs."""

    def __init__(self) -> None:
        self._letters: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, letter: T) -> None:
        self._letters.append(letter)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def take(self) -> deque[T]:
        """Everything that has come since the last time; waits until there is something."""
        while not self._letters:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        letters, self._letters = self._letters, deque()
        return letters
