"""vLLM's /inference/v1/generate: token ids in, token ids out, and the rendering of a chat into such a body."""

from .reader import read_generate
from .rendered import rendering
from .writer import GenerateView, GenerateWriter

__all__ = ["GenerateView", "GenerateWriter", "read_generate", "rendering"]
