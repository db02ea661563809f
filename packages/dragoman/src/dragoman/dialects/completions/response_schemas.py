"""The schemas of Completions' responses, for the API description."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.events import WeightSpan
from ..logprobs import CompletionLogprobs, PromptLogprob
from ..openai_response_schemas import CompletionUsage, FinishReasonName
from ..vllm_response_fields import VllmRequestMetrics


class CompletionChoice(Struct, frozen=True):
    """One text. The fields after `finish_reason` are vLLM's."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReasonName
    weight_versions: list[WeightSpan] | UnsetType | None = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType | None = UNSET


class TextCompletion(Struct, frozen=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    service_tier: Literal["default"] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET
    metrics: VllmRequestMetrics | UnsetType = UNSET


class CompletionChunkChoice(Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReasonName | None
    weight_versions: list[WeightSpan] | UnsetType | None = UNSET
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET


class TextCompletionChunk(Struct, frozen=True):
    """One event of a stream. Its `object` is the same as in a complete answer, as in
    OpenAI's API.
    """

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    service_tier: Literal["default"] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET
    metrics: VllmRequestMetrics | UnsetType = UNSET
