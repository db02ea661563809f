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


def count_tokens_answer(tokens: int) -> bytes:
    return b'{"input_tokens":%d}' % tokens
