"""OpenAI Completions, with vLLM's extensions."""

from .reader import read_completions
from .writer import CompletionsRenderOptions, CompletionsWriter

__all__ = ["CompletionsRenderOptions", "CompletionsWriter", "read_completions"]
