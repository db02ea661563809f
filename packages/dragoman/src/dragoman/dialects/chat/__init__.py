"""OpenAI Chat Completions, with vLLM's extensions."""

from .reader import read_chat, read_chat_call
from .stored import ChatCall
from .writer import ChatRenderOptions, ChatWriter, REASONING_FIELDS

__all__ = [
    "REASONING_FIELDS",
    "ChatCall",
    "ChatRenderOptions",
    "ChatWriter",
    "read_chat",
    "read_chat_call",
]
