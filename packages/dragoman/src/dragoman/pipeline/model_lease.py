"""The lease of a batch stream, which keeps its model loaded until the stream ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from ..core.events import Event


class Lease(AsyncGenerator[list[Event]]):
    """A batch stream that prevents its model from being unloaded until it ends, is
    closed or is garbage-collected.

    An async generator function would not hold the model before its first step, and its
    `finally` never runs if it is dropped before that.
    """

    __slots__ = ("_batches", "_usage_guard")

    def __init__(
        self, usage_guard: AbstractContextManager[None], batches: AsyncGenerator[list[Event]]
    ) -> None:
        self._usage_guard: AbstractContextManager[None] | None = usage_guard
        self._batches = batches
        usage_guard.__enter__()

    # The inherited __anext__ is a coroutine that awaits asend(): one more frame for
    # every batch.
    def __anext__(self) -> Coroutine[Any, Any, list[Event]]:
        return self.asend(None)

    async def asend(self, value: None) -> list[Event]:
        try:
            return await self._batches.asend(value)
        # Also releases at the regular end, which arrives as StopAsyncIteration.
        except BaseException:
            self._release()
            raise

    async def athrow(self, *exception: Any) -> list[Event]:  # noqa: ANN401 - as the generator protocol has it
        try:
            return await self._batches.athrow(*exception)
        except BaseException:
            self._release()
            raise

    async def aclose(self) -> None:
        """Close the stream, also when it has ended already, which the inherited
        `aclose` does not expect.
        """
        try:
            await self._batches.aclose()
        finally:
            self._release()

    def _release(self) -> None:
        usage_guard = self._usage_guard
        self._usage_guard = None
        if usage_guard is not None:
            usage_guard.__exit__(None, None, None)

    def __del__(self) -> None:
        self._release()
