"""The schemas that OpenAI's responses share, for the API description.

For speed, the writers build JSON without these structs; tests validate their output
against them. A field that is `UNSET` is written only if it is requested, or only in
vLLM's profile.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

FinishReasonName = Literal["stop", "length", "content_filter", "abort", "cache_threshold"]


class CachedTokenDetails(Struct, frozen=True):
    """Tokens read from the cache and written to it; absent if unknown."""

    cached_tokens: int | UnsetType = UNSET
    cache_write_tokens: int | UnsetType = UNSET


class ReasoningTokenDetails(Struct, frozen=True):
    reasoning_tokens: int


class CompletionUsage(Struct, frozen=True):
    """Token counts. Details are null if unknown, which differs from zero."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokenDetails | None
    completion_tokens_details: ReasoningTokenDetails | None
