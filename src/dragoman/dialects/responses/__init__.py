"""OpenAI Responses, which is Open Responses too, with vLLM's extensions. Keeps no state: see `ResponsesCall`."""

from .call import ResponsesCall, stateless
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
    "read_responses",
    "responses_error",
    "rows",
    "stateless",
]
