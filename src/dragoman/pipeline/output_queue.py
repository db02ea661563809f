"""Queue between an engine and its single consumer: a list and one wake-up, no asyncio.Queue operation per token."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class OutputQueue(Generic[T]):
    """Outputs of one request. Created, filled and emptied on one event loop.

    Bounded by the producer: a response has at most max_tokens outputs.
    """

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
        """A future that is done when the queue has items. No coroutine: it is awaited once per token."""
        self._waiter = self._loop.create_future()
        if self._items:
            self._waiter.set_result(None)
        return self._waiter

    def take_all(self) -> list[T]:
        """All items since the last call."""
        items, self._items = self._items, []
        return items
