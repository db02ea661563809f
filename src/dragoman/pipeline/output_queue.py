"""Queue between an engine and its single consumer: a list and one wake-up, no asyncio.Queue operation per token.

A consumer that waits can have its items handled in the loop iteration after their delivery, without being woken: see
`DeliveryRounds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class DeliveryRounds:
    """Calls the receivers of queues with new items: once in an iteration of the event loop, in the order of delivery.

    An engine's step delivers to many queues; their receivers run together, after the step. Used on one event loop.
    """

    __slots__ = ("_receivers",)

    def __init__(self) -> None:
        self._receivers: list[Callable[[], None]] = []

    def schedule(self, receiver: Callable[[], None]) -> None:
        """receiver: must not raise."""
        if not self._receivers:
            asyncio.get_running_loop().call_soon(self._call_receivers)
        self._receivers.append(receiver)

    def _call_receivers(self) -> None:
        # Swapped first: a receiver that causes new output is called in the next iteration, so that sockets get their
        # turn.
        receivers, self._receivers = self._receivers, []
        for receive in receivers:
            receive()


class OutputQueue(Generic[T]):
    """Outputs of one request. Created, filled and emptied on one event loop.

    Bounded by the producer: a response has at most max_tokens outputs.
    """

    __slots__ = ("_items", "_loop", "_receiver", "_rounds", "_waiter")

    def __init__(self) -> None:
        self._items: list[T] = []
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._rounds: DeliveryRounds | None = None
        self._receiver: Callable[[], None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._receiver is None or self._rounds is None:
            waiter.set_result(None)
        # Later items of this round find the receiver scheduled already.
        elif len(self._items) == 1:
            self._rounds.schedule(self._receiver)

    def receive_directly(self, rounds: DeliveryRounds, receiver: Callable[[], None]) -> None:
        """Call `receiver` in place of waking the consumer. It takes the items, or wakes the consumer after all."""
        self._rounds, self._receiver = rounds, receiver

    def take_awaited(self, kinds: frozenset[type[T]]) -> list[T]:
        """All items since the last call, if the consumer waits for them and the last is of these kinds; else none.

        A consumer that waits has handled all earlier items.
        """
        items, waiter = self._items, self._waiter
        if waiter is None or waiter.done() or not items or type(items[-1]) not in kinds:
            return []
        self._items = []
        return items

    def wake(self) -> None:
        """Wake the consumer, whether there are items or not."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def wait_for_items(self) -> asyncio.Future[None]:
        """A future that is done when the queue has items. No coroutine: it is awaited once per token."""
        # A future is awaited once and not reusable. It is cheaper than an Event, which has a future and a queue of
        # waiters.
        self._waiter = self._loop.create_future()
        if self._items:
            self._waiter.set_result(None)
        return self._waiter

    def take_all(self) -> list[T]:
        """All items since the last call."""
        items, self._items = self._items, []
        return items
