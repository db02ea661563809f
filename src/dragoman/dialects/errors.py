"""OpenAI's error envelope, and vLLM's variant of it. Knows no HTTP beyond the status that an error names."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError, RateLimited
from .base import Profile
from .json_encoding import escape_line_breaks, replace_surrogates

MAX_MESSAGE = 2_000
"""Maximum characters of a message on the wire, so that a client's input is never echoed at length."""

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
# The names of vLLM's exception classes; for errors of its web framework, the reason phrase of the status.
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


class OpenAIErrorDetail(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | int | None


class OpenAIErrorBody(Struct, frozen=True):
    error: OpenAIErrorDetail


def render_openai_error(error: DragomanError, profile: Profile) -> bytes:
    """The JSON body of an error response, or the payload of a stream's last event.

    All four keys are always present. `code` is a string or null in OpenAI's profile, the HTTP status in vLLM's.
    """
    message = replace_surrogates(error.message)
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    param = None if error.param is None else replace_surrogates(error.param)[:MAX_MESSAGE]
    code = error.code if profile is Profile.OPENAI else error.status
    body = OpenAIErrorBody(OpenAIErrorDetail(message, _find_type(error, profile), param, code))
    return escape_line_breaks(msgspec.json.encode(body))


def _find_type(error: DragomanError, profile: Profile) -> str:
    status = error.status
    if isinstance(error, RateLimited) and error.limit is not None and profile is Profile.OPENAI:
        return error.limit
    if profile is Profile.VLLM:
        return _VLLM_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
