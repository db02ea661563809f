"""Errors of the Responses dialect: OpenAI's envelope with this dialect's field names,
error events, and the `error` of a failed response.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.errors import ContextTooLong, DragomanError, RateLimited, RequestError
from ...core.field_names import FieldNames
from ..error_envelope import ErrorEnvelope
from ..interfaces import Profile
from ..json_encoding import encode_string, encode_string_or_null
from ..openai_errors import OpenAIErrorBody, render_openai_error

# This dialect's names of core fields, for errors and warnings that are raised after
# parsing.
RESPONSES_NAMES = FieldNames(
    ("messages", "input"),
    ("max_tokens", "max_output_tokens"),
    ("reasoning_effort", "reasoning.effort"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"(tools\[\d+\])\.function", r"\1"),
    (r"(tools\[\d+\])\.custom(\.format)?", r"\1.format"),
)


def render_responses_error(error: DragomanError, profile: Profile = Profile.OPENAI) -> bytes:
    """Render the JSON body of an error response with status `error.status`."""
    RESPONSES_NAMES.translate(error)
    return render_openai_error(error, profile)


class _FlatError(Struct, frozen=True):
    message: str
    param: str | None
    code: str | None


def render_error_fields(error: DragomanError) -> bytes:
    """Render the fields of an `error` event, flat for OpenAI's clients and nested for
    those of Open Responses.
    """
    # Both forms come from one rendering, so both have the bounded message and the
    # translated field names.
    nested = render_responses_error(error).removeprefix(b'{"error":')[:-1]
    flat = msgspec.json.decode(nested, type=_FlatError)
    return b'"code":%s,"message":%s,"param":%s,"error":%s' % (
        encode_string_or_null(flat.code), encode_string(flat.message),
        encode_string_or_null(flat.param), nested,
    )  # fmt: skip


def render_failure(error: DragomanError) -> bytes:
    """Render the `error` of a failed response."""
    message = msgspec.json.decode(
        render_responses_error(error).removeprefix(b'{"error":')[:-1], type=_FlatError
    ).message
    if isinstance(error, RateLimited):
        code = b"rate_limit_exceeded"
    elif isinstance(error, ContextTooLong):
        # Not in OpenAI's list, but agents know it.
        code = b"context_length_exceeded"
    else:
        code = b"invalid_prompt" if isinstance(error, RequestError) else b"server_error"
    return b'{"code":"%s","message":%s}' % (code, encode_string(message))


RESPONSES_ERRORS = ErrorEnvelope(
    name="Responses",
    body=OpenAIErrorBody,
    render=lambda error, _, profile: render_responses_error(error, profile),
)
