"""OpenAI Chat Completions, with vLLM's extensions."""

from .reader import read_chat, read_chat_call
from .stored_chat import ChatCall
from .writer import REASONING_FIELDS, ChatRenderOptions, ChatWriter

__all__ = [
    "REASONING_FIELDS",
    "ChatCall",
    "ChatRenderOptions",
    "ChatWriter",
    "read_chat",
    "read_chat_call",
]
