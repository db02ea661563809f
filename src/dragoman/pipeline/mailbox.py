"""Where an engine's outputs wait for their one reader: a list and one wake-up, no queue per token."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Made, filled and emptied on one event loop. Bounded by the sender: an answer has at most max_tokens outputs."""

    __slots__ = ("_letters", "_loop", "_waiter")

    def __init__(self) -> None:
        self._letters: list[T] = []
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, letter: T) -> None:
        self._letters.append(letter)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """Done when there is something to take. A future and no coroutine: it is awaited once a token."""
        self._waiter = self._loop.create_future()
        if self._letters:
            self._waiter.set_result(None)
        return self._waiter

    def take(self) -> list[T]:
        """Everything that has come since the last time."""
        letters, self._letters = self._letters, []
        return letters
