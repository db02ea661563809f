"""The llama.cpp engine: runs GGUF models in a separate process. Needs the extra
`llamacpp`.
"""

from .gguf_metadata import GgufMetadata, find_parts, read_metadata
from .gguf_settings import find_end_tokens, read_pooling_type
from .load import LlamaCppOptions, Projector, load, measure_kv_cache
from .pooling import LlamaCppEmbedder, LlamaCppScorer, load_pooling_engine
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
