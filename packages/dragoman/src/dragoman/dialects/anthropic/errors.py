"""Anthropic's error envelope, and the statuses that differ from the core's.

The envelope has no field for a parameter's name: the message starts with it, worded
like Anthropic's own validator.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import ContextTooLong, DragomanError, NotFound, Unsupported
from ...core.field_names import FieldNames
from ..error_envelope import ErrorEnvelope
from ..field_errors import abbreviate
from ..json_encoding import escape_line_breaks, replace_surrogates
from ..openai_errors import MAX_MESSAGE
from ..rate_limit_headers import render_anthropic_rate_limits

OVERLOADED_STATUS = 529
"""Anthropic's status instead of 503."""

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
# This dialect's names of core fields, for errors and warnings that are raised after
# parsing.
MESSAGES_NAMES = FieldNames(
    ("thinking_token_budget", "thinking.budget_tokens"),
    ("response_format", "output_config.format"),
    ("continue_final_message", "messages"),
    ("reasoning_effort", "output_config.effort"),
    ("stop", "stop_sequences"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
)
_INDEX = re.compile(r"\[(\d+)\]")
# The beginnings of messages of `dialects.request_body`, which Anthropic words
# differently.
_MISSING = re.compile(r"Missing required parameter: '[^']*'\.(.*)", re.DOTALL)
_INVALID = re.compile(r"Invalid (?:type|value) for '[^']*': (.*)", re.DOTALL)


class ThreadUnsupportedDetails(
    Struct, frozen=True, tag_field="error_code", tag="thread_unsupported_request"
):
    """The details that make the official SDK resend the whole conversation without
    `thread`.
    """

    unsupported: tuple[str, ...] = ("thread",)


class ThreadUnsupported(Unsupported):
    """The server cannot store threads. Ignoring `thread` would silently drop all
    earlier turns.
    """

    details = ThreadUnsupportedDetails()

    def __init__(self) -> None:
        super().__init__(
            "Threads are not supported here; send the whole conversation without it.",
            param="thread",
        )


class ThreadNotFoundDetails(Struct, frozen=True, tag_field="error_code", tag="thread_not_found"):
    """The details that make the official SDK resend the whole conversation as a new
    thread.
    """


class ThreadNotFound(NotFound):
    """The answer to continue, or one before it, no longer exists."""

    details = ThreadNotFoundDetails()

    def __init__(self, id: str) -> None:
        super().__init__(
            f"There is no message {abbreviate(id)} to continue.", param="thread.previous_message_id"
        )


class AnthropicErrorDetail(Struct, frozen=True):
    type: str
    message: str
    details: ThreadUnsupportedDetails | ThreadNotFoundDetails | UnsetType = UNSET


class AnthropicErrorBody(Struct, frozen=True, kw_only=True):
    type: str = "error"
    error: AnthropicErrorDetail
    request_id: str | UnsetType = UNSET


def render_anthropic_error(error: DragomanError, request_id: str | None = None) -> bytes:
    """Serialize an error: the body of a response with `map_anthropic_status(error)`, or
    an `error` event's data.
    """
    if isinstance(error, ContextTooLong):
        # Claude Code, LangChain and LiteLLM match on this wording. At least one output
        # token has to fit too.
        message = (
            f"prompt is too long: {error.prompt} tokens > "
            f"{min(error.limit, error.prompt - 1)} maximum"
        )
    elif error.param is None:
        message = error.message
    else:
        MESSAGES_NAMES.translate(error)
        # Anthropic writes `messages.0.content` for `messages[0].content`.
        path = _INDEX.sub(r".\1", error.param)
        if match := _MISSING.fullmatch(error.message):
            message = f"{path}: Field required{'.' if match.group(1) else ''}{match.group(1)}"
        else:
            match = _INVALID.fullmatch(error.message)
            message = f"{path}: {match.group(1) if match else error.message}"
    message = replace_surrogates(message)
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    details = error.details if isinstance(error, ThreadUnsupported | ThreadNotFound) else UNSET
    id = UNSET if request_id is None else request_id
    body = AnthropicErrorDetail(
        _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error"),
        message,
        details,
    )
    return escape_line_breaks(msgspec.json.encode(AnthropicErrorBody(error=body, request_id=id)))


def map_anthropic_status(error: DragomanError) -> int:
    return OVERLOADED_STATUS if error.status == 503 else error.status


ANTHROPIC_ERRORS = ErrorEnvelope(
    name="Anthropic",
    body=AnthropicErrorBody,
    render=lambda error, request_id, _: render_anthropic_error(error, request_id),
    map_status=map_anthropic_status,
    render_rate_limits=render_anthropic_rate_limits,
    key_header="x-api-key",
    client_headers=("anthropic-version",),
)
