"""TGI's errors: a text and its kind, and the statuses that are its own. Knows no HTTP beyond those."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...core.errors import DragomanError, RateLimited, RequestError
from ..errors import MAX_MESSAGE
from ..json_encoding import escape_line_breaks, replace_surrogates

VALIDATION_STATUS, GENERATION_STATUS, OVERLOADED_STATUS = 422, 424, 429
"""TGI's own statuses for what is 400, 500 and 503 elsewhere."""


_PARAM_NAMES = {
    "prompt": "inputs",
    "logprobs": "parameters.details",
    "prompt_logprobs": "parameters.decoder_input_details",
    "top_logprobs": "parameters.top_n_tokens",
    "response_format": "parameters.grammar",
    "max_tokens": "parameters.max_new_tokens",
}
"""What fields of the core are called here, where the error comes from behind the reader."""


class _TgiError(Struct, frozen=True):
    error: str
    error_type: str


def render_tgi_error(error: DragomanError) -> bytes:
    """The JSON body of an answer with status `tgi_status`, or the payload of a stream's last event.

    It has no place for a field's name: a message that does not say the whole of it begins with it.
    """
    message = replace_surrogates(error.message)
    param = replace_surrogates(_PARAM_NAMES.get(error.param or "", error.param or ""))[:MAX_MESSAGE]
    if param not in message:
        message = f"{param}: {message}"
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return escape_line_breaks(msgspec.json.encode(_TgiError(message, _find_error_type(error))))


def map_tgi_status(error: DragomanError) -> int:
    if isinstance(error, RequestError):
        return VALIDATION_STATUS if error.status == 400 else error.status
    return OVERLOADED_STATUS if error.status == 503 else GENERATION_STATUS


def _find_error_type(error: DragomanError) -> str:
    if isinstance(error, RateLimited) or error.status == 503:
        return "overloaded"
    return "validation" if isinstance(error, RequestError) else "generation"
