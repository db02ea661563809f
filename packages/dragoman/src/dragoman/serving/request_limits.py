"""The limits of a key on requests other than calls to a model: rendering, counting
tokens, uploads, stored objects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from ..core.errors import DragomanError
from .http_request import HttpRequest
from .route import RequestCost


@asynccontextmanager
async def limit_request(http: HttpRequest, cost: RequestCost) -> AsyncGenerator[None]:
    """Count a request with the limits of its key while its handler runs.

    Raises:
        RateLimited: a limit is reached.
    """
    tenancy = http.service.tenancy
    match cost:
        case RequestCost.CALL:
            failure = None
            try:
                yield
            except DragomanError as error:
                failure = error
            # One that calls no model, as its body is invalid for instance. Counted
            # afterwards, since only the handler knows.
            if http.record.call is None:
                with await tenancy.admit_request(http.caller):
                    pass
            if failure is not None:
                raise failure
        case RequestCost.REQUEST:
            with await tenancy.admit_request(http.caller):
                yield
        case RequestCost.READ:
            await tenancy.admit_read(http.caller)
            yield
