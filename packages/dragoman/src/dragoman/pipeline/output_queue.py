"""The queues between an engine and the tasks of its responses."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class _OutputReader(Protocol):
    def deliver(self) -> None:
        """Pass on the outputs that have arrived. Must not raise."""
        ...


class DeliveryRounds:
    """Calls the readers of new outputs, once per iteration of the event loop, in order
    of delivery.

    An engine's step delivers to many responses; their readers run together, after the
    step. All calls are made on one event loop.
    """

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: list[_OutputReader] = []

    def schedule(self, reader: _OutputReader) -> None:
        """Call the reader in the next iteration of the event loop."""
        if not self._readers:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._readers.append(reader)

    def _deliver_all(self) -> None:
        # The list is swapped first, so a reader that causes new output is called in
        # the next iteration. Sockets are served in between.
        readers = self._readers
        self._readers = []
        for reader in readers:
            reader.deliver()


class OutputQueue(Generic[T]):
    """The outputs of several producers that their consumer has not taken yet. Created,
    filled and emptied on one event loop.

    A list and one wake-up cost less than an asyncio.Queue. Bounded by the producers.
    """

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        # The first item has already woken the consumer.
        if len(self._items) == 1 and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wait_for_items(self) -> asyncio.Future[None]:
        """Return a future that is done when the queue has items."""
        self._waiter = asyncio.get_running_loop().create_future()
        if self._items:
            self._waiter.set_result(None)
        return self._waiter

    def take_all(self) -> list[T]:
        """Take all items."""
        items = self._items
        self._items = []
        return items
