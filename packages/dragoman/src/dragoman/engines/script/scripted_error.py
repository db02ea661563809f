"""The exception for a scripted failure."""

from __future__ import annotations

from ...core.errors import (
    AuthenticationError,
    BodyTooLarge,
    Conflict,
    DragomanError,
    EngineError,
    EngineTimeout,
    MethodNotAllowed,
    MisdirectedRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    RequestError,
    UnsupportedMediaType,
)
from .script import Fail

_ERROR_TYPES: tuple[type[DragomanError], ...] = (
    AuthenticationError,
    PermissionDenied,
    NotFound,
    MethodNotAllowed,
    Conflict,
    BodyTooLarge,
    UnsupportedMediaType,
    MisdirectedRequest,
    RateLimited,
    Overloaded,
    EngineTimeout,
)


def build_error(fail: Fail) -> DragomanError:
    """Build the exception for a Fail. A status without a class of its own uses
    RequestError or EngineError.
    """
    general = RequestError if fail.status < 500 else EngineError
    error_type = next(
        (error_type for error_type in _ERROR_TYPES if error_type.status == fail.status), general
    )
    error = error_type(fail.message, param=fail.param, code=fail.code, retry_after=fail.retry_after)
    error.status = fail.status
    return error
