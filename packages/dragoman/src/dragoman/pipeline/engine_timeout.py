"""Deadlines of calls into engines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from ..core.errors import EngineTimeout

T = TypeVar("T")


async def limit_call_time(
    work: Awaitable[T], seconds: float | None, deadline: float | None = None
) -> T:
    """Return the result of `work`; cancel it after `seconds` and raise EngineTimeout.
    None means no limit.

    deadline: when the `seconds` end, in seconds of the event loop's clock; by default
        they begin now.
    """
    if seconds is None:
        return await work
    timeout = asyncio.timeout(seconds) if deadline is None else asyncio.timeout_at(deadline)
    try:
        async with timeout:
            return await work
    except TimeoutError:
        # A TimeoutError that the engine itself raised is the engine's failure.
        if not timeout.expired():
            raise
        raise EngineTimeout(f"The request exceeded its timeout of {seconds:g} seconds.") from None
