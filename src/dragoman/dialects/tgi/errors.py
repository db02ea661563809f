"""TGI's errors: a message, its type, and TGI's own statuses. Knows no other HTTP."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.errors import DragomanError, RateLimited, RequestError
from ...core.field_names import FieldNames
from ..errors import MAX_MESSAGE
from ..json_encoding import escape_line_breaks, replace_surrogates

VALIDATION_STATUS, GENERATION_STATUS, OVERLOADED_STATUS = 422, 424, 429
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
    ("(n|best_of|temperature|top_p|top_k|presence_penalty|frequency_penalty|repetition_penalty)", r"parameters.\1"),
    ("(seed|allowed_token_ids|stop|ignore_eos)", r"parameters.\1"),
)
"""This dialect's names of core fields, for errors and warnings that are raised after parsing."""


class TgiError(Struct, frozen=True):
    error: str
    error_type: str


def render_tgi_error(error: DragomanError) -> bytes:
    """The JSON body of a response with status `map_tgi_status`, or the payload of a stream's last event.

    It has no field for a parameter's name: a message that does not contain the name starts with it.
    """
    TGI_NAMES.translate(error)
    message = replace_surrogates(error.message)
    param = replace_surrogates(error.param or "")[:MAX_MESSAGE]
    if param not in message:
        message = f"{param}: {message}"
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return escape_line_breaks(msgspec.json.encode(TgiError(message, _find_error_type(error))))


def map_tgi_status(error: DragomanError) -> int:
    if isinstance(error, RequestError):
        return VALIDATION_STATUS if error.status == 400 else error.status
    return OVERLOADED_STATUS if error.status == 503 else GENERATION_STATUS


def _find_error_type(error: DragomanError) -> str:
    if isinstance(error, RateLimited) or error.status == 503:
        return "overloaded"
    return "validation" if isinstance(error, RequestError) else "generation"
