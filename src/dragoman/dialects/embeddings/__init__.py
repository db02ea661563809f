"""OpenAI's embeddings with vLLM's fields: request parsing and response rendering. Computes no vectors."""

from .cohere import CohereEmbedCall, read_cohere_embed, render_cohere_embed
from .reader import EmbedCall, read_embeddings
from .writer import render_embeddings

__all__ = [
    "CohereEmbedCall",
    "EmbedCall",
    "read_cohere_embed",
    "read_embeddings",
    "render_cohere_embed",
    "render_embeddings",
]
