"""vLLM's /tokenize and /detokenize: what was asked, and the answers. The tokenizer is elsewhere."""

from .reader import DetokenizeCall, TokenizeCall, read_detokenize, read_tokenize
from .writer import render_detokenize, render_tokenize

__all__ = [
    "DetokenizeCall",
    "TokenizeCall",
    "read_detokenize",
    "read_tokenize",
    "render_detokenize",
    "render_tokenize",
]
