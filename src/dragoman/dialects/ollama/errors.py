"""Ollama's errors: `{"error": "..."}`, as the body of a response or as a line of a stream."""

from __future__ import annotations

from ...core.errors import DragomanError
from ..errors import MAX_MESSAGE
from ..field_names import FieldNames
from ..json_encoding import encode_string

OLLAMA_NAMES = FieldNames(
    ("response_format", "format"),
    ("max_tokens", "options.num_predict"),
    ("chat_template", "template"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("(reasoning_effort|enable_thinking|thinking_token_budget)", "think"),
    ("(temperature|top_p|top_k|min_p|presence_penalty|frequency_penalty|seed|stop)", r"options.\1"),
)
"""This dialect's names of core fields, for errors and warnings that are raised after parsing."""


def render_ollama_error(error: DragomanError) -> bytes:
    """The JSON body. It has no field for a parameter's name, so a message without the name starts with it."""
    OLLAMA_NAMES.translate(error)
    message, param = error.message, (error.param or "")[:MAX_MESSAGE]
    if param not in message:
        message = f"{param}: {message}"
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return b'{"error":%s}' % encode_string(message)
