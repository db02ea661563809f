"""The schemas of Gemini's responses, for the API description.

`writer` serializes answers without these structs.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from .writer import GeminiLogprobs


class GeminiAnswerCall(Struct, frozen=True):
    id: str
    name: str
    args: dict[str, Any]


class GeminiAnswerPart(Struct, frozen=True):
    """A part: text, a thought or a call. The signature seals the reasoning before it."""

    text: str | UnsetType = UNSET
    thought: bool | UnsetType = UNSET
    functionCall: GeminiAnswerCall | UnsetType = UNSET
    thoughtSignature: str | UnsetType = UNSET


class GeminiAnswerContent(Struct, frozen=True):
    parts: list[GeminiAnswerPart]
    role: Literal["model"]


class GeminiCandidate(Struct, frozen=True):
    content: GeminiAnswerContent
    index: int
    finishReason: Literal["STOP", "MAX_TOKENS", "SAFETY", "OTHER"] | UnsetType = UNSET
    avgLogprobs: float | UnsetType = UNSET
    logprobsResult: GeminiLogprobs | UnsetType = UNSET


class GeminiUsage(Struct, frozen=True):
    """Token counts; unknown ones are absent."""

    promptTokenCount: int | UnsetType = UNSET
    candidatesTokenCount: int | UnsetType = UNSET
    totalTokenCount: int | UnsetType = UNSET
    cachedContentTokenCount: int | UnsetType = UNSET
    thoughtsTokenCount: int | UnsetType = UNSET


class GeminiResponse(Struct, frozen=True):
    """A response, or a chunk of it. The last chunk has the usage."""

    candidates: list[GeminiCandidate]
    modelVersion: str
    responseId: str
    usageMetadata: GeminiUsage | UnsetType = UNSET


class GeminiTokenCount(Struct, frozen=True):
    totalTokens: int


class GeminiEmbedding(Struct, frozen=True):
    values: list[float]


class GeminiEmbedResponse(Struct, frozen=True):
    embedding: GeminiEmbedding


class GeminiBatchEmbedResponse(Struct, frozen=True):
    embeddings: list[GeminiEmbedding]
