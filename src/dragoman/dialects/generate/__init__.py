"""vLLM's /inference/v1/generate: token ids in, token ids out, and the rendering of a chat into such a body."""

from .reader import read_generate
from .render import render_generate_body
from .writer import GenerateRenderOptions, GenerateWriter

__all__ = ["GenerateRenderOptions", "GenerateWriter", "read_generate", "render_generate_body"]
