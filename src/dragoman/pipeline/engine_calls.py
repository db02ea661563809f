"""Calls into engines: containment of what they raise, deadlines, and the record of their progress. Knows no HTTP.

An engine is foreign code. What it raises ends its own request as an EngineError, also where that is no `Exception`:
asyncio gives CancelledError, GeneratorExit, KeyboardInterrupt and SystemExit a meaning of their own, and would end the
request's task without an answer, or the whole process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar

from ..core.errors import EngineError, EngineTimeout

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSING = 10.0
"""Seconds that an engine may take to end a request that is cancelled or over."""


class Progress:
    """Counters of one model's generations, from which a health check tells whether its engine still does anything.

    They are plain counts, so that a token costs no look at the clock.
    """

    __slots__ = ("events", "running")

    def __init__(self) -> None:
        self.events = 0
        """Batches of events, starts and ends; grows for as long as anything happens."""
        self.running = 0
        """Requests that have been given to the engine and have not ended."""

    def begin(self) -> None:
        self.running += 1
        self.events += 1

    def end(self) -> None:
        self.running -= 1
        self.events += 1


def contain(error: BaseException, task: asyncio.Task[Any] | None) -> BaseException:
    """The exception to raise instead of one that an engine raised in `task`: itself, or an EngineError.

    A CancelledError that nobody requested of the task is the engine's own: one of its inner tasks was cancelled.
    A GeneratorExit outside the task that runs comes from a coroutine that is closed, as at the end of the process.
    """
    if isinstance(error, Exception):
        return error
    if task is None or asyncio.current_task() is not task or (_is_cancel(error) and task.cancelling()):
        return error
    log.error("an engine raised %s", type(error).__name__, exc_info=error)
    return EngineError("The engine failed while it was answering; the server's log says why.", code="internal_error")


def _is_cancel(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)


class EngineCall:
    """A context around one call of an engine, see `contain`."""

    __slots__ = ("_task",)

    def __enter__(self) -> None:
        self._task = asyncio.current_task()

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is not None and (contained := contain(error, self._task)) is not error:
            raise contained from error


async def close_stream(events: AsyncGenerator[T]) -> None:
    """Close an engine's stream. What it raises then is only logged: the request has its end already."""
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(CLOSING):
            await events.aclose()
    except TimeoutError:
        log.error("an engine took longer than %.0f s to end a request", CLOSING)
    except BaseException as error:
        if not isinstance(error, Exception) and contain(error, task) is error:
            raise
        log.exception("an engine failed while it ended a request")


async def limit_time(batches: AsyncGenerator[T], seconds: float) -> AsyncGenerator[T]:
    """The same batches, until `seconds` after the first is asked for. Raises EngineTimeout then."""
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
                if not timeout.expired():
                    raise
                raise EngineTimeout(f"The request was not finished within its {seconds:g} seconds.") from None
            yield batch
