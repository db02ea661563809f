"""OpenAI's error envelope, and vLLM's variant of it. Knows no HTTP beyond the status that an error names."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from .base import Profile
from .text import line_safe, printable

MAX_MESSAGE = 2_000
"""Characters of a message on the wire; what a client sent is never echoed at length."""

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
# The names of vLLM's exception classes and, for what its framework answers, the reason phrase of the status.
_VLLM_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "Method Not Allowed",
    409: "ConflictError",
    413: "RequestEntityTooLargeError",
    415: "UnsupportedMediaTypeError",
    421: "Misdirected Request",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
    504: "TimeoutError",
}


class _Error(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | int | None


class _Envelope(Struct, frozen=True):
    error: _Error


def openai_error(error: DragomanError, profile: Profile) -> bytes:
    """The JSON body of an answer with status `error.status`, or the payload of a stream's last event.

    All four keys are always there. OpenAI's profile: `code` is a word or null; vLLM's: the status as a number.
    """
    message = printable(error.message)
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    param = None if error.param is None else printable(error.param)[:MAX_MESSAGE]
    code = error.code if profile is Profile.OPENAI else error.status
    body = _Envelope(_Error(message, _type(error.status, profile), param, code))
    return line_safe(msgspec.json.encode(body))


def _type(status: int, profile: Profile) -> str:
    if profile is Profile.VLLM:
        return _VLLM_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
