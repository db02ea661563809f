"""Anthropic Messages and its count_tokens, with vLLM's extensions."""

from .errors import ThreadNotFound, ThreadUnsupported, anthropic_error, anthropic_status
from .reader import CountCall, read_count_tokens, read_messages
from .writer import MessagesView, MessagesWriter, unsigned

__all__ = [
    "CountCall",
    "MessagesView",
    "MessagesWriter",
    "ThreadNotFound",
    "ThreadUnsupported",
    "anthropic_error",
    "anthropic_status",
    "count_tokens_answer",
    "read_count_tokens",
    "read_messages",
    "unsigned",
]


def count_tokens_answer(tokens: int, original: int | None = None) -> bytes:
    """original: what it was before the conversation was edited, where that is to be told."""
    told = b"" if original is None else b',"context_management":{"original_input_tokens":%d}' % original
    return b'{"input_tokens":%d%s}' % (tokens, told)
