"""A route: a path with its handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from .auth import Access
from .error_envelope import ErrorEnvelope
from .handler_result import HandlerResult
from .http_request import HttpRequest

Handler = Callable[[HttpRequest], Awaitable[HandlerResult]]


@dataclass(frozen=True, slots=True)
class Route:
    """A path with its handlers.

    path: literal, or a pattern such as `/v1/responses/{id}`.
    access: the required access.
    envelope: the format of all its errors, including those of authentication and of the
        method.
    handlers: handlers by method; HEAD is handled as GET without the body.
    browser_handler: handles the GET of a browser that opens the address; needs no key,
        since browsers cannot send one.
    root: a path without a route of its own; unknown paths below it get this route's
        envelope too.
    """

    path: str
    access: Access
    envelope: ErrorEnvelope
    handlers: Mapping[str, Handler]
    browser_handler: Handler | None = None
    root: str | None = None
