"""Ollama's native API: chat, generate, embeddings and models. Streams are lines of
JSON.
"""

from .embeddings import (
    OllamaEmbedCall,
    read_embed,
    read_embeddings,
    render_embed,
    render_embeddings,
)
from .errors import render_ollama_error
from .model_info import (
    LATEST,
    NamedModel,
    OllamaModelCard,
    RunningModel,
    list_served_progress,
    read_model_reference,
    render_load_status,
    render_pull_progress,
    render_running_models,
    render_show,
    render_tags,
)
from .reader import AnswerClock, OllamaCall, read_ollama_chat, read_ollama_generate
from .writer import LineFraming, OllamaRenderOptions, OllamaTimings, OllamaWriter

__all__ = [
    "LATEST",
    "AnswerClock",
    "LineFraming",
    "NamedModel",
    "OllamaCall",
    "OllamaEmbedCall",
    "OllamaModelCard",
    "OllamaRenderOptions",
    "OllamaTimings",
    "OllamaWriter",
    "RunningModel",
    "list_served_progress",
    "read_embed",
    "read_embeddings",
    "read_model_reference",
    "read_ollama_chat",
    "read_ollama_generate",
    "render_embed",
    "render_embeddings",
    "render_load_status",
    "render_ollama_error",
    "render_pull_progress",
    "render_running_models",
    "render_show",
    "render_tags",
]
