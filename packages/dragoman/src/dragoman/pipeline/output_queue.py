"""The output queue of a request, from its engine to its single consumer.

A list and one wake-up cost less than an asyncio.Queue per token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DeliveryRounds:
    """Calls the callbacks of queues that have new items, once per iteration of the
    event loop, in order of delivery.

    An engine's step delivers to many queues; their callbacks run together, after the
    step. All calls are made on one event loop.
    """

    __slots__ = ("_callbacks",)

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def schedule(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which must not raise, in the next iteration of the event
        loop.
        """
        if not self._callbacks:
            asyncio.get_running_loop().call_soon(self._run_callbacks)
        self._callbacks.append(callback)

    def _run_callbacks(self) -> None:
        # The list is swapped first, so a callback that causes new output is called in
        # the next iteration. Sockets are served in between.
        callbacks = self._callbacks
        self._callbacks = []
        for callback in callbacks:
            callback()


class OutputQueue(Generic[T]):
    """The outputs of one request that its consumer has not taken yet. Created, filled
    and emptied on one event loop.

    Bounded by the producer: a response has at most max_tokens outputs.
    """

    __slots__ = ("_callback", "_items", "_loop", "_rounds", "_waiter")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._rounds: DeliveryRounds | None = None
        self._callback: Callable[[], None] | None = None

    def put(self, item: T) -> None:
        items = self._items
        items.append(item)
        # The first item has already woken the consumer, or scheduled the callback.
        if len(items) > 1:
            return
        if self._callback is not None and self._rounds is not None:
            self._rounds.schedule(self._callback)
        else:
            self.wake()

    def notify(self, rounds: DeliveryRounds, callback: Callable[[], None]) -> None:
        """Call `callback` instead of waking the consumer, also while it does not wait. It
        takes the items, or wakes the consumer itself.
        """
        self._rounds = rounds
        self._callback = callback

    def stop_notifying(self) -> None:
        """Wake the consumer instead of calling the callback of `notify`."""
        self._callback = None

    def take_awaited(self, kinds: frozenset[type[T]]) -> list[T]:
        """Take all items, if the consumer waits for them and the last one is of one of
        these types; else none.

        A consumer that waits has handled all earlier items.
        """
        items = self._items
        waiter = self._waiter
        if waiter is None or waiter.done() or not items or type(items[-1]) not in kinds:
            return []
        self._items = []
        return items

    def wake(self) -> None:
        """Wake the consumer, whether there are items or not."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wait_for_items(self) -> asyncio.Future[None]:
        """Return a future that is done when the queue has items. A coroutine would cost
        more, once per token.
        """
        # A future is awaited once and not reusable. It is cheaper than an Event, which
        # has a future and a queue of waiters.
        self._waiter = self._loop.create_future()
        if self._items:
            self._waiter.set_result(None)
        return self._waiter

    def take_all(self) -> list[T]:
        """Take all items."""
        items = self._items
        self._items = []
        return items
