"""OpenAI Completions, with vLLM's extensions."""

from .reader import read_completions
from .writer import CompletionsView, CompletionsWriter

__all__ = ["CompletionsView", "CompletionsWriter", "read_completions"]
