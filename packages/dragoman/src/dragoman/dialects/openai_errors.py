"""OpenAI's error envelope, with vLLM's variant."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError, RateLimited
from .error_envelope import ErrorEnvelope
from .interfaces import Profile
from .json_encoding import escape_line_breaks, replace_surrogates

MAX_MESSAGE = 2_000
"""Maximum characters of an error message: a client's input must not be echoed at
length.
"""

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
# Names of vLLM's exception classes, or the status's reason phrase for errors that its
# web framework raises.
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
    """Serialize an error: the body of a response, or the data of a stream's last event.

    All four keys are always present. `code` is a string or null in OpenAI's profile,
    the HTTP status in vLLM's.
    """
    message = replace_surrogates(error.message)
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    param = None if error.param is None else replace_surrogates(error.param)[:MAX_MESSAGE]
    code = error.code if profile is Profile.OPENAI else error.status
    status = error.status
    if profile is Profile.VLLM:
        type = _VLLM_TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError")
    elif isinstance(error, RateLimited) and error.limit is not None:
        type = error.limit
    else:
        type = _OPENAI_TYPES.get(
            status, "invalid_request_error" if status < 500 else "server_error"
        )
    body = OpenAIErrorBody(OpenAIErrorDetail(message, type, param, code))
    return escape_line_breaks(msgspec.json.encode(body))


OPENAI_ERRORS = ErrorEnvelope(
    name="OpenAI",
    body=OpenAIErrorBody,
    render=lambda error, _, profile: render_openai_error(error, profile),
)
