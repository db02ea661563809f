"""A scripted failure as one of the errors that dialects can render."""

from __future__ import annotations

from ...core.errors import (
    BodyTooLarge,
    Conflict,
    DragomanError,
    EngineError,
    EngineTimeout,
    MethodNotAllowed,
    Misdirected,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    Overloaded,
    RateLimited,
    RequestError,
    UnsupportedMedia,
)
from .script import Fail

_KINDS: tuple[type[DragomanError], ...] = (
    NotAuthenticated,
    NotPermitted,
    NotFound,
    MethodNotAllowed,
    Conflict,
    BodyTooLarge,
    UnsupportedMedia,
    Misdirected,
    RateLimited,
    Overloaded,
    EngineTimeout,
)


def error_of(fail: Fail) -> DragomanError:
    """A status that no error has of its own is put on the general one of its hundred."""
    general = RequestError if fail.status < 500 else EngineError
    kind = next((kind for kind in _KINDS if kind.status == fail.status), general)
    error = kind(fail.message, param=fail.param, code=fail.code, retry_after=fail.retry_after)
    error.status = fail.status
    return error
