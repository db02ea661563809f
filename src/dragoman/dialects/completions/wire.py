"""The struct of a Completions body: shapes and bounds only."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..fields import GenerationFields, Logprobs, TokenId


class CompletionsBody(GenerationFields, frozen=True, kw_only=True):
    """A Completions body.

    prompt: a text, texts, one prompt's token ids, or several prompts' token ids.
    """

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    logprobs: Logprobs | None = None
