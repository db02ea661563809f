"""OpenAI's embeddings with vLLM's fields: request parsing and response rendering. Computes no vectors."""

from .reader import EmbedCall, read_embeddings
from .writer import render_embeddings

__all__ = ["EmbedCall", "read_embeddings", "render_embeddings"]
