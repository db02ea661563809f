"""vLLM's /tokenize and /detokenize: request parsing and response rendering. Contains no tokenizer."""

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
