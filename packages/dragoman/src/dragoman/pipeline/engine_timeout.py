"""Deadlines of calls into engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from ..core.errors import EngineTimeout

T = TypeVar("T")


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
