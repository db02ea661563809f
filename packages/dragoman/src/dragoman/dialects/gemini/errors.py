"""Google's error envelope: a code, a message, a status and details."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from ...core.errors import DragomanError
from ...core.field_names import FieldNames
from ..error_envelope import ErrorEnvelope
from ..json_encoding import escape_line_breaks, replace_surrogates
from ..openai_errors import MAX_MESSAGE
from .wire import GEMINI_SAMPLING

GEMINI_NAMES = FieldNames(
    ("response_format", "generationConfig.responseMimeType"),
    ("max_tokens", "generationConfig.maxOutputTokens"),
    ("min_tokens", "generationConfig.maxOutputTokens"),
    ("n", "generationConfig.candidateCount"),
    ("(top_)?logprobs", "generationConfig.logprobs"),
    ("stop", "generationConfig.stopSequences"),
    ("thinking_token_budget", "generationConfig.thinkingConfig.thinkingBudget"),
    ("reasoning_effort", "generationConfig.thinkingConfig.thinkingLevel"),
    ("enable_thinking", "generationConfig.thinkingConfig"),
    ("tool_choice", "toolConfig.functionCallingConfig"),
    (r"tools\[\d+\]\.function\.parameters", "tools.functionDeclarations.parameters"),
    (r"messages(\[\d+\])?(\.content)?(\[\d+\])?", "contents"),
    ("dimensions", "outputDimensionality"),
    *GEMINI_SAMPLING.list_paths("generationConfig"),
)
"""This dialect's names of core fields, for errors and warnings that are raised after
parsing.
"""

_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_CAPITAL = re.compile("[A-Z]")
_BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"


class GeminiErrorStatus(Struct, frozen=True, omit_defaults=True):
    """An error.

    code: the HTTP status.
    status: the name of Google's own code.
    """

    code: int
    message: str
    status: str
    details: list[dict[str, Any]] | UnsetType = UNSET


class GeminiError(Struct, frozen=True):
    error: GeminiErrorStatus


def render_gemini_error(error: DragomanError) -> bytes:
    """Serialize an error as a response body or an event of a stream."""
    GEMINI_NAMES.translate(error)
    message = error.message
    field = error.param
    if field is not None and error.code == "unknown_parameter":
        field, _, name = _CAPITAL.sub(lambda match: f"_{match[0].lower()}", field).rpartition(".")
        place = f" at '{field}'" if field else ""
        message = f'Invalid JSON payload received. Unknown name "{name}"{place}: Cannot find field.'
    message = replace_surrogates(message[:MAX_MESSAGE])
    details: list[dict[str, Any]] = []
    if field is not None:
        named = {"field": replace_surrogates(field[:MAX_MESSAGE])} if field else {}
        violations = [{**named, "description": message}]
        details.append({"@type": _BAD_REQUEST, "fieldViolations": violations})
    if error.retry_after is not None:
        details.append({"@type": _RETRY_INFO, "retryDelay": f"{error.retry_after:g}s"})
    default = "INVALID_ARGUMENT" if error.status < 500 else "INTERNAL"
    status = GeminiErrorStatus(
        error.status, message, _STATUSES.get(error.status, default), details or UNSET
    )
    return escape_line_breaks(msgspec.json.encode(GeminiError(status)))


GEMINI_ERRORS = ErrorEnvelope(
    name="Gemini",
    body=GeminiError,
    render=lambda error, _, __: render_gemini_error(error),
    key_header="x-goog-api-key",
    key_parameter="key",
    client_headers=("x-goog-api-key", "x-goog-api-client"),
)
