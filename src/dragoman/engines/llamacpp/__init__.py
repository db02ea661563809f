"""Models in GGUF files, computed by llama.cpp in a process of its own. Needs the extra `llamacpp`."""

from .gguf import Metadata, parts, read_metadata
from .load import LlamaCppOptions, Projector, load, load_reader
from .model import ends, pooling_type
from .reader import LlamaCppEmbedder, LlamaCppScorer
from .vision import Token

__all__ = [
    "LlamaCppEmbedder",
    "LlamaCppOptions",
    "LlamaCppScorer",
    "Metadata",
    "Projector",
    "Token",
    "ends",
    "load",
    "load_reader",
    "parts",
    "pooling_type",
    "read_metadata",
]
