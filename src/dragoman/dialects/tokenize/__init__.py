"""vLLM's /tokenize and /detokenize: what was asked, and the answers. The tokenizer is elsewhere."""

from .reader import DetokenizeCall, TokenizeCall, read_detokenize, read_tokenize
from .writer import detokenize_answer, tokenize_answer

__all__ = [
    "DetokenizeCall",
    "TokenizeCall",
    "detokenize_answer",
    "read_detokenize",
    "read_tokenize",
    "tokenize_answer",
]
