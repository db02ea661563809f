"""Where an engine's outputs wait for their one reader: a list and one wake-up, no queue per token."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class OutputQueue(Generic[T]):
    """Made, filled and emptied on one event loop. Bounded by the sender: an answer has at most max_tokens outputs."""

    __slots__ = ("_items", "_loop", "_waiter")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, item: T) -> None:
        self._items.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def wait_for_items(self) -> asyncio.Future[None]:
        """Done when there is something to take. A future and no coroutine: it is awaited once a token."""
        self._waiter = self._loop.create_future()
        if self._items:
            self._waiter.set_result(None)
        return self._waiter

    def take_all(self) -> list[T]:
        """Everything that has come since the last time."""
        items, self._items = self._items, []
        return items
