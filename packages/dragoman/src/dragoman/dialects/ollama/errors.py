"""Ollama's errors: one string, which names the field in Ollama's words."""

from __future__ import annotations

from msgspec import Struct

from ...core.errors import DragomanError
from ...core.field_names import FieldNames
from ..error_envelope import ErrorEnvelope
from ..json_encoding import encode_string
from ..openai_errors import MAX_MESSAGE
from .wire import OLLAMA_SAMPLING

OLLAMA_NAMES = FieldNames(
    ("response_format", "format"),
    ("max_tokens", "options.num_predict"),
    ("chat_template", "template"),
    ("(reasoning_effort|enable_thinking|thinking_token_budget)", "think"),
    ("stop", "options.stop"),
    *OLLAMA_SAMPLING.list_paths("options"),
    # Images are the only message parts that can be unsupported.
    (r"(messages\[\d+\])\.content", r"\1.images"),
)
"""This dialect's names of core fields, for errors and warnings that are raised after
parsing.
"""


OLLAMA_GENERATE_NAMES = FieldNames(
    (r"messages\[\d+\]\.content", "images"), ("messages", "prompt"), *OLLAMA_NAMES.names
)
"""The names for /api/generate, whose body has no messages."""


class OllamaError(Struct, frozen=True):
    error: str


def render_ollama_error(error: DragomanError) -> bytes:
    """Serialize an error as a response body or a line of a stream."""
    OLLAMA_NAMES.translate(error)
    message = error.message
    param = (error.param or "")[:MAX_MESSAGE]
    # Ollama's error is a single string, so the invalid field can only be named in it.
    if param not in message:
        message = f"{param}: {message}"
    if len(message) > MAX_MESSAGE:
        message = message[:MAX_MESSAGE] + "..."
    return b'{"error":%s}' % encode_string(message)


OLLAMA_ERRORS = ErrorEnvelope(
    name="Ollama", body=OllamaError, render=lambda error, _, __: render_ollama_error(error)
)
