"""Calls into engines: exception containment, deadlines, progress counters and output
queues.

An engine may be third-party code. Whatever it raises fails only its own request.
Exceptions that are not an `Exception` become EngineErrors: asyncio gives
CancelledError, GeneratorExit, KeyboardInterrupt and SystemExit a special meaning, and
they would end the request's task without a response, or the whole process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from threading import Thread
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..core.errors import EngineError, EngineTimeout

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT = 10.0
"""Seconds that an engine may take to end a cancelled or finished request."""


class Progress:
    """Progress counters of one model's generations, by which a health check detects a
    stalled engine.

    Counters are cheaper than timestamps: no token has to read the clock.
    """

    __slots__ = ("_fail_callbacks", "events", "running")

    def __init__(self) -> None:
        self._fail_callbacks: set[Callable[[EngineError], None]] = set()
        self.events = 0
        """Number of event batches, starts and ends; it grows as long as the engine
        makes progress.
        """
        self.running = 0
        """Requests that were submitted to the engine and have not ended."""

    def begin(self, fail: Callable[[EngineError], None]) -> None:
        """Count a generation that begins.

        fail: ends the generation with an error; called if the engine has failed and
            does not end it itself.
        """
        self._fail_callbacks.add(fail)
        self.running += 1
        self.events += 1

    def end(self, fail: Callable[[EngineError], None]) -> None:
        self._fail_callbacks.discard(fail)
        self.running -= 1
        self.events += 1

    def fail_all(self, error: EngineError) -> None:
        """End all generations with an error, as their engine will deliver nothing more."""
        # A copy: a generation that ends removes its callback.
        for fail in tuple(self._fail_callbacks):
            fail(error)


def translate_engine_exception(
    error: BaseException, task: asyncio.Task[Any] | None
) -> BaseException:
    """Return the exception to raise instead of one that an engine raised in `task`: the
    same, or an EngineError.

    A CancelledError without a cancellation of the task comes from one of the engine's
    inner tasks. A GeneratorExit outside the running task comes from a coroutine that is
    being closed, as at process exit.
    """
    if isinstance(error, Exception):
        return error
    if (
        task is None
        or asyncio.current_task() is not task
        or (isinstance(error, asyncio.CancelledError) and task.cancelling())
    ):
        return error
    log.error("an engine raised %s", type(error).__name__, exc_info=error)
    return EngineError("The engine failed; see the server's log.", code="internal_error")


class EngineCall:
    """Context manager around one call of an engine, see `contain`."""

    __slots__ = ("_task",)

    def __enter__(self) -> None:
        self._task = asyncio.current_task()

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if (
            error is not None
            and (translated := translate_engine_exception(error, self._task)) is not error
        ):
            raise translated from error


async def close_stream(events: AsyncGenerator[T]) -> None:
    """Close an engine's stream. Exceptions are only logged: the request has already
    ended.
    """
    task = asyncio.current_task()
    try:
        # A hung engine must not hold the request's connection and its place in the
        # queue.
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await events.aclose()
    except TimeoutError:
        log.error("an engine took longer than %.0f s to end a request", CLOSE_TIMEOUT)
    except BaseException as error:
        if not isinstance(error, Exception) and translate_engine_exception(error, task) is error:
            raise
        log.exception("an engine failed while it ended a request")


async def limit_time(batches: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T]:
    """Yield the same batches, until `seconds` after the first request for one; then
    raise EngineTimeout.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    async with aclosing(batches):
        while True:
            timeout = asyncio.timeout_at(deadline)
            try:
                async with timeout:
                    batch = await anext(batches)
            except StopAsyncIteration:
                return
            except TimeoutError:
                # A TimeoutError that the engine itself raised is the engine's failure.
                if not timeout.expired():
                    raise
                raise EngineTimeout(
                    f"The request exceeded its timeout of {seconds:g} seconds."
                ) from None
            yield batch


async def limit_call_time(work: Awaitable[T], seconds: float | None) -> T:
    """Return the result of `work`; cancel it after `seconds` and raise EngineTimeout.
    None means no limit.
    """
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():
            raise
        raise EngineTimeout(f"The request exceeded its timeout of {seconds:g} seconds.") from None


async def run_in_daemon_thread(call: Callable[[], T]) -> T:
    """Run a blocking call that cannot be interrupted in a daemon thread, which does not
    delay the process's exit.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def finish(set_result: Callable[[], None]) -> None:
        if not result.done():
            set_result()

    def run() -> None:
        try:
            value = call()
            report = partial(finish, partial(result.set_result, value))
        except BaseException as error:
            report = partial(finish, partial(result.set_exception, error))
        # The loop is closed if the server has stopped in the meantime.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(report)

    # Not anyio's or asyncio's threads: both are joined at exit, and loading a model can
    # take minutes.
    Thread(target=run, name=run_in_daemon_thread.__name__, daemon=True).start()
    return await result


# The queue between an engine and its single consumer. A list and one wake-up cost less
# than an asyncio.Queue per token.


class DeliveryRounds:
    """Calls the receivers of queues that have new items, once per iteration of the
    event loop, in order of delivery.

    An engine's step delivers to many queues; their receivers run together, after the
    step. All calls are made on one event loop.
    """

    __slots__ = ("_receivers",)

    def __init__(self) -> None:
        self._receivers: list[Callable[[], None]] = []

    def schedule(self, receiver: Callable[[], None]) -> None:
        """Call `receiver`, which must not raise, in the next iteration of the event
        loop.
        """
        if not self._receivers:
            asyncio.get_running_loop().call_soon(self._call_receivers)
        self._receivers.append(receiver)

    def _call_receivers(self) -> None:
        # The list is swapped first, so a receiver that causes new output is called in
        # the next iteration. Sockets are served in between.
        receivers = self._receivers
        self._receivers = []
        for receive in receivers:
            receive()


class OutputQueue(Generic[T]):
    """The outputs of one request that its consumer has not taken yet. Created, filled
    and emptied on one event loop.

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
        # For later items of this round the receiver is already scheduled.
        elif len(self._items) == 1:
            self._rounds.schedule(self._receiver)

    def receive_directly(self, rounds: DeliveryRounds, receiver: Callable[[], None]) -> None:
        """Call `receiver` instead of waking the consumer. It takes the items, or wakes
        the consumer itself.
        """
        self._rounds = rounds
        self._receiver = receiver

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
