"""The schemas of /inference/v1/generate's responses, for the API description."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ...core.events import WeightSpan
from ..logprobs import PromptLogprob
from ..openai_response_schemas import CompletionUsage, FinishReasonName
from .writer import GenerateTokenLogprob


class GenerateLogprobs(Struct, frozen=True):
    content: list[GenerateTokenLogprob]


class GeneratedChoice(Struct, frozen=True):
    index: int
    logprobs: GenerateLogprobs | None
    finish_reason: FinishReasonName | None
    token_ids: list[int]
    weight_versions: list[WeightSpan] | UnsetType | None = UNSET


class GeneratedTokens(Struct, frozen=True):
    """The answer of /inference/v1/generate: token ids without text."""

    request_id: str
    choices: list[GeneratedChoice]
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None
    kv_transfer_params: dict[str, Any] | None
    usage: CompletionUsage


class GeneratedTokensChunk(Struct, frozen=True):
    request_id: str
    choices: list[GeneratedChoice]
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    usage: CompletionUsage | UnsetType = UNSET
