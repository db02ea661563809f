"""TGI's errors: a message, its type, TGI's own statuses."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.errors import DragomanError, RateLimited, RequestError
from ...core.field_names import FieldNames
from ..error_envelope import ErrorEnvelope
from ..json_encoding import escape_line_breaks, replace_surrogates
from ..openai_errors import MAX_MESSAGE
from .wire import TGI_SAMPLING

VALIDATION_STATUS = 422


GENERATION_STATUS = 424


OVERLOADED_STATUS = 429
"""TGI's statuses instead of 400, 500 and 503."""


TGI_NAMES = FieldNames(
    ("prompt", "inputs"),
    ("logprobs", "parameters.details"),
    ("prompt_logprobs", "parameters.decoder_input_details"),
    ("top_logprobs", "parameters.top_n_tokens"),
    ("response_format", "parameters.grammar"),
    ("max_tokens", "parameters.max_new_tokens"),
    ("min_tokens", "parameters.min_new_tokens"),
    ("truncate_prompt_tokens", "parameters.truncate"),
    ("(n|best_of|stop|ignore_eos)", r"parameters.\1"),
    *TGI_SAMPLING.list_paths("parameters"),
)
"""This dialect's names of core fields, for errors and warnings that are raised after
parsing.
"""


class TgiError(Struct, frozen=True):
    error: str
    error_type: str


def render_tgi_error(error: DragomanError) -> bytes:
    """Render the JSON body of a response with status `map_tgi_status`, or the payload
    of a stream's last event.

    The body has no field for a parameter's name, so a message that does not contain the
    name is prefixed with it.
    """
    TGI_NAMES.translate(error)
    message = replace_surrogates(error.message)
    param = replace_surrogates(error.param or "")[:MAX_MESSAGE]
    if param not in message:
        message = f"{param}: {message}"
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    if isinstance(error, RateLimited) or error.status == 503:
        type = "overloaded"
    else:
        type = "validation" if isinstance(error, RequestError) else "generation"
    return escape_line_breaks(msgspec.json.encode(TgiError(message, type)))


def map_tgi_status(error: DragomanError) -> int:
    if isinstance(error, RequestError):
        return VALIDATION_STATUS if error.status == 400 else error.status
    return OVERLOADED_STATUS if error.status == 503 else GENERATION_STATUS


TGI_ERRORS = ErrorEnvelope(
    name="TGI",
    body=TgiError,
    render=lambda error, _, __: render_tgi_error(error),
    map_status=map_tgi_status,
)
