"""OpenAI's embeddings with vLLM's fields: what was asked, and the answer. The vectors are made elsewhere."""

from .reader import EmbedCall, read_embeddings
from .writer import embeddings_answer

__all__ = ["EmbedCall", "embeddings_answer", "read_embeddings"]
