"""Containment of exceptions in calls into engines.

An engine may be third-party code. Whatever it raises fails only its own request.
Exceptions that are not an `Exception` become EngineErrors: asyncio gives
CancelledError, GeneratorExit, KeyboardInterrupt and SystemExit a special meaning, and
they would end the request's task without a response, or the whole process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any, TypeVar

from ..core.errors import EngineError

log = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT = 10.0
"""Seconds that an engine may take to end a cancelled or finished request."""


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
