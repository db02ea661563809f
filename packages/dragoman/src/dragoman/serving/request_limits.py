"""The limits of a key on requests other than calls to a model: rendering, counting
tokens, uploads, stored objects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..core.errors import DragomanError
from .http_request import HttpRequest
from .route import RequestCost

T = TypeVar("T")


async def run_within_limits(
    handler: Callable[[HttpRequest], Awaitable[T]], http: HttpRequest, cost: RequestCost
) -> T:
    """Run a handler, and count the request with the limits of its key.

    Raises:
        RateLimited: a limit is reached.
    """
    tenancy = http.service.tenancy
    match cost:
        case RequestCost.CALL:
            try:
                result = await handler(http)
            except DragomanError:
                await _count_uncalled(http)
                raise
            await _count_uncalled(http)
            return result
        case RequestCost.REQUEST:
            with await tenancy.admit_request(http.caller):
                return await handler(http)
        case RequestCost.READ:
            await tenancy.admit_read(http.caller)
            return await handler(http)


async def _count_uncalled(http: HttpRequest) -> None:
    """Count a request that calls no model, as its body is invalid for instance.
    Afterwards, since only the handler knows.
    """
    if http.record.call is None:
        with await http.service.tenancy.admit_request(http.caller):
            pass
