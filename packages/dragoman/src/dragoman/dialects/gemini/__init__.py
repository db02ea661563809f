"""Google's Gemini API: generateContent, streams, token counts, embeddings, models."""

from .embeddings import (
    GeminiEmbedCall,
    read_batch_embed_contents,
    read_embed_content,
    render_gemini_embeddings,
)
from .model_info import (
    PREFIX,
    GeminiModel,
    GeminiModelList,
    build_model,
    render_model_page,
)
from .reader import GeminiCountCall, read_count_tokens, read_generate_content
from .writer import Framing, GeminiRenderOptions, GeminiWriter

__all__ = [
    "PREFIX",
    "Framing",
    "GeminiCountCall",
    "GeminiEmbedCall",
    "GeminiModel",
    "GeminiModelList",
    "GeminiRenderOptions",
    "GeminiWriter",
    "build_model",
    "read_batch_embed_contents",
    "read_count_tokens",
    "read_embed_content",
    "read_generate_content",
    "render_gemini_embeddings",
    "render_model_page",
]
