"""OpenAI's error envelope with vLLM's variant, and the rate limit headers of OpenAI and
Anthropic.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError, RateLimited
from .base import Profile
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


# The response headers with the state of an API key's rate limits.

Headers = list[tuple[bytes, bytes]]


class RateLimitState(Struct, frozen=True):
    """The state of one rate limit.

    name: `requests` or `tokens`.
    limit: maximum requests or tokens.
    remaining: requests or tokens that may be used now.
    reset_after: seconds until the whole limit is available again.
    """

    name: str
    limit: int
    remaining: int
    reset_after: float


def render_openai_rate_limits(states: Sequence[RateLimitState], _now: float) -> Headers:
    """Render `x-ratelimit-*`:
    https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers.
    """
    headers: Headers = []
    for state in states:
        for field, value in (
            ("limit", str(state.limit)),
            ("remaining", str(state.remaining)),
            ("reset", render_duration(state.reset_after)),
        ):
            headers.append((f"x-ratelimit-{field}-{state.name}".encode(), value.encode()))
    return headers


def render_anthropic_rate_limits(states: Sequence[RateLimitState], now: float) -> Headers:
    """Render `anthropic-ratelimit-*`:
    https://docs.claude.com/en/api/rate-limits#response-headers.

    now: Unix seconds.
    """
    headers: Headers = []
    for state in states:
        # RFC 3339, rounded up to a second at which the limit is surely available.
        reset = datetime.fromtimestamp(-(-(now + state.reset_after) // 1), UTC)
        for field, value in (
            ("limit", str(state.limit)),
            ("remaining", str(state.remaining)),
            ("reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ")),
        ):
            headers.append((f"anthropic-ratelimit-{state.name}-{field}".encode(), value.encode()))
    return headers


def render_duration(seconds: float) -> str:
    """Format a duration like Go, as OpenAI does: `0s`, `20ms`, `7.66s`, `6m0s`. Rounded
    up to milliseconds.
    """
    milliseconds = -(-round(seconds * 1_000_000) // 1000)
    if not 0 < milliseconds < 1000:
        whole_seconds, remainder = divmod(milliseconds, 1000)
        minutes, second = divmod(whole_seconds, 60)
        hours, minute = divmod(minutes, 60)
        fraction = f".{remainder:03d}".rstrip("0") if remainder else ""
        prefix = (f"{hours}h" if hours else "") + (f"{minute}m" if minutes else "")
        return f"{prefix}{second}{fraction}s"
    return f"{milliseconds}ms"
