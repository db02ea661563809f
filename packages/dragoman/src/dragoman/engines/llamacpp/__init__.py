"""The llama.cpp engine: runs GGUF models in a separate process. Needs the extra
`llamacpp`.
"""

from .gguf import GgufMetadata, find_end_tokens, find_parts, read_metadata, read_pooling_type
from .load import (
    LlamaCppEmbedder,
    LlamaCppOptions,
    LlamaCppScorer,
    Projector,
    load,
    load_pooling_engine,
    measure_kv_cache,
)
from .vision import ImageToken

__all__ = [
    "GgufMetadata",
    "ImageToken",
    "LlamaCppEmbedder",
    "LlamaCppOptions",
    "LlamaCppScorer",
    "Projector",
    "find_end_tokens",
    "find_parts",
    "load",
    "load_pooling_engine",
    "measure_kv_cache",
    "read_metadata",
    "read_pooling_type",
]
