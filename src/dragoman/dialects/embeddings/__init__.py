"""OpenAI's embeddings with vLLM's fields: what was asked, and the answer. The vectors are made elsewhere."""

from .reader import EmbedCall, read_embeddings
from .writer import render_embeddings

__all__ = ["EmbedCall", "read_embeddings", "render_embeddings"]
