"""The answers of /tokenize and /detokenize, as vLLM gives them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..text import printable


class _Tokenized(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


class _Detokenized(Struct, frozen=True):
    prompt: str


def tokenize_answer(tokens: Sequence[int], max_model_len: int, strings: Sequence[str] | None = None) -> bytes:
    """strings: each token's text, where `return_token_strs` asked for it."""
    texts = None if strings is None else [printable(text) for text in strings]
    return msgspec.json.encode(_Tokenized(len(tokens), max_model_len, tokens, texts))


def detokenize_answer(prompt: str) -> bytes:
    return msgspec.json.encode(_Detokenized(printable(prompt)))
