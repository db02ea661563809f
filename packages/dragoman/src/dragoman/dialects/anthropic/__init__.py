"""Anthropic Messages and its count_tokens, with vLLM's extensions."""

from .errors import ThreadNotFound, ThreadUnsupported, map_anthropic_status, render_anthropic_error
from .reader import CountCall, read_count_tokens, read_messages
from .writer import MessagesRenderOptions, MessagesWriter, no_signature

__all__ = [
    "CountCall",
    "MessagesRenderOptions",
    "MessagesWriter",
    "ThreadNotFound",
    "ThreadUnsupported",
    "map_anthropic_status",
    "no_signature",
    "read_count_tokens",
    "read_messages",
    "render_anthropic_error",
    "render_count_tokens",
]


def render_count_tokens(tokens: int, original: int | None = None) -> bytes:
    """Serialize the response of count_tokens.

    original: the count before context edits; None leaves it out.
    """
    context_management = (
        b""
        if original is None
        else b',"context_management":{"original_input_tokens":%d}' % original
    )
    return b'{"input_tokens":%d%s}' % (tokens, context_management)
