"""OpenAI Chat Completions, with vLLM's extensions."""

from .reader import read_chat
from .writer import REASONING_FIELDS, ChatView, ChatWriter

__all__ = ["REASONING_FIELDS", "ChatView", "ChatWriter", "read_chat"]
