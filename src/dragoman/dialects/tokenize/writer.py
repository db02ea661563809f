"""Renders the responses of /tokenize and /detokenize in vLLM's format."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..json_encoding import replace_surrogates


class TokenizeAnswer(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


class DetokenizeAnswer(Struct, frozen=True, omit_defaults=True):
    """A decoded text.

    token_strs, control_tokens: if requested; vLLM has neither.
    control_tokens: the ids among them, ascending.
    """

    prompt: str
    token_strs: Sequence[str] | None = None
    control_tokens: Sequence[int] | None = None


def render_tokenize(tokens: Sequence[int], max_model_len: int, strings: Sequence[str] | None = None) -> bytes:
    """strings: each token's text, if `return_token_strs` requested it."""
    texts = None if strings is None else [replace_surrogates(text) for text in strings]
    return msgspec.json.encode(TokenizeAnswer(len(tokens), max_model_len, tokens, texts))


def render_detokenize(
    prompt: str, strings: Sequence[str] | None = None, control_tokens: Sequence[int] | None = None
) -> bytes:
    """strings, control_tokens: if `return_token_strs` requested them."""
    texts = None if strings is None else [replace_surrogates(text) for text in strings]
    return msgspec.json.encode(DetokenizeAnswer(replace_surrogates(prompt), texts, control_tokens))
