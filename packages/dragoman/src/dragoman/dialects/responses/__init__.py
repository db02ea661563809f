"""OpenAI Responses and Open Responses, with vLLM's extensions. Stateless: stores are
behind `ResponsesCall`.
"""

from .errors import render_responses_error
from .input_items import InputItem, assign_ids
from .reader import read_responses
from .render_options import Echo, ResponsesRenderOptions
from .responses_call import ResponsesCall
from .writer import ResponsesWriter

__all__ = [
    "Echo",
    "InputItem",
    "ResponsesCall",
    "ResponsesRenderOptions",
    "ResponsesWriter",
    "assign_ids",
    "read_responses",
    "render_input_tokens",
    "render_responses_error",
]


def render_input_tokens(tokens: int) -> bytes:
    return b'{"object":"response.input_tokens","input_tokens":%d}' % tokens
