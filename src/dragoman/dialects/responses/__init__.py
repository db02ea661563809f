"""OpenAI Responses, which is Open Responses too, with vLLM's extensions. Keeps no state: see `ResponsesCall`."""

from .call import ResponsesCall
from .echo import Echo
from .errors import responses_error
from .normal import InputItem, rows
from .reader import read_responses
from .view import ResponsesView
from .writer import ResponsesWriter

__all__ = [
    "Echo",
    "InputItem",
    "ResponsesCall",
    "ResponsesView",
    "ResponsesWriter",
    "input_tokens_answer",
    "read_responses",
    "responses_error",
    "rows",
]


def input_tokens_answer(tokens: int) -> bytes:
    return b'{"object":"response.input_tokens","input_tokens":%d}' % tokens
