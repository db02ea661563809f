"""Models in GGUF files, computed by llama.cpp in a process of its own. Needs the extra `llamacpp`."""

from .gguf import Metadata, parts, read_metadata
from .load import LlamaCppOptions, load
from .model import ends

__all__ = ["LlamaCppOptions", "Metadata", "ends", "load", "parts", "read_metadata"]
