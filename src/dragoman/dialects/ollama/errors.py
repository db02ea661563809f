"""Ollama's errors: `{"error": "..."}`, as the body of a response or as a line of a stream."""

from __future__ import annotations

from ...core.errors import DragomanError
from ..errors import MAX_MESSAGE
from ..json_encoding import encode_string

_PARAM_NAMES = {
    "response_format": "format",
    "max_tokens": "options.num_predict",
    "chat_template": "template",
    "repetition_penalty": "options.repeat_penalty",
    "thinking_token_budget": "think",
}
"""This dialect's names of core fields, for errors that are raised after parsing."""


def render_ollama_error(error: DragomanError) -> bytes:
    """The JSON body. It has no field for a parameter's name, so a message without the name starts with it."""
    message = error.message
    param = _PARAM_NAMES.get(error.param or "", error.param or "")[:MAX_MESSAGE]
    if param not in message:
        message = f"{param}: {message}"
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return b'{"error":%s}' % encode_string(message)
