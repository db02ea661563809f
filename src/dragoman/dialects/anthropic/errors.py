"""Anthropic's error envelope, and the statuses where it differs from the core's. Knows no HTTP beyond that.

The envelope has no place for a field's name: the message begins with it, in the words of Anthropic's own validator.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import ContextTooLong, DragomanError, NotFound, Unsupported
from ..body import abbreviate
from ..errors import MAX_MESSAGE
from ..json_encoding import escape_line_breaks, replace_surrogates

OVERLOADED_STATUS = 529
"""Anthropic's own status for what is 503 elsewhere."""

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED_STATUS: "overloaded_error",
}
# What fields of the core are called here, where the error comes from behind the reader.
_PARAM_NAMES = {
    "thinking_token_budget": "thinking.budget_tokens",
    "response_format": "output_config.format",
    "continue_final_message": "messages",
}
_INDEX = re.compile(r"\[(\d+)\]")
_MISSING = re.compile(r"Missing required parameter: '[^']*'\.(.*)", re.DOTALL)
_INVALID = re.compile(r"Invalid (?:type|value) for '[^']*': (.*)", re.DOTALL)


class ThreadUnsupportedDetails(Struct, frozen=True):
    """What makes the official SDK send the whole conversation again, without `thread`."""

    error_code: str = "thread_unsupported_request"
    unsupported: tuple[str, ...] = ("thread",)


class ThreadUnsupported(Unsupported):
    """A conversation that the server shall remember. Ignoring that would lose all earlier turns in silence."""

    details = ThreadUnsupportedDetails()

    def __init__(self) -> None:
        super().__init__("Threads are not supported here; send the whole conversation without it.", param="thread")


class ThreadNotFoundDetails(Struct, frozen=True):
    """What makes the official SDK send the whole conversation again, as a new thread."""

    error_code: str = "thread_not_found"


class ThreadNotFound(NotFound):
    """The answer that is to be continued is not there, or one before it is gone."""

    details = ThreadNotFoundDetails()

    def __init__(self, id: str) -> None:
        super().__init__(f"There is no message {abbreviate(id)} to continue.", param="thread.previous_message_id")


class _AnthropicError(Struct, frozen=True):
    type: str
    message: str
    details: ThreadUnsupportedDetails | ThreadNotFoundDetails | UnsetType = UNSET


class _AnthropicErrorEnvelope(Struct, frozen=True, kw_only=True):
    type: str = "error"
    error: _AnthropicError
    request_id: str | UnsetType = UNSET


def render_anthropic_error(error: DragomanError, request_id: str | None = None) -> bytes:
    """The JSON body of an answer with status `anthropic_status(error)`, or the payload of an `error` event."""
    message = replace_surrogates(_build_message(error))
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    details = error.details if isinstance(error, ThreadUnsupported | ThreadNotFound) else UNSET
    id = UNSET if request_id is None else request_id
    body = _AnthropicError(_find_type(error.status), message, details)
    return escape_line_breaks(msgspec.json.encode(_AnthropicErrorEnvelope(error=body, request_id=id)))


def map_anthropic_status(error: DragomanError) -> int:
    return OVERLOADED_STATUS if error.status == 503 else error.status


def _find_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _build_message(error: DragomanError) -> str:
    if isinstance(error, ContextTooLong):
        # The wording that Claude Code, LangChain and LiteLLM look for. At least one token of the answer has to fit too.
        return f"prompt is too long: {error.prompt} tokens > {min(error.limit, error.prompt - 1)} maximum"
    if error.param is None:
        return error.message
    path = _translate_path(error.param)
    if match := _MISSING.fullmatch(error.message):
        return f"{path}: Field required{'.' if match.group(1) else ''}{match.group(1)}"
    match = _INVALID.fullmatch(error.message)
    return f"{path}: {match.group(1) if match else error.message}"


def _translate_path(param: str) -> str:
    """`messages[0].content` is `messages.0.content` here."""
    return _INDEX.sub(r".\1", _PARAM_NAMES.get(param, param))
