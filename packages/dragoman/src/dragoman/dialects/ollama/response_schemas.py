"""The schemas of Ollama's responses, for the API description.

`writer` serializes answers without these structs.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from .model_info import OllamaListedModel, OllamaProcessModel
from .writer import OllamaTokenLogprob


class OllamaCalledTool(Struct, frozen=True):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(Struct, frozen=True):
    id: str
    index: int
    function: OllamaCalledTool


class OllamaAnswerMessage(Struct, frozen=True):
    role: Literal["assistant"]
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class _OllamaLine(Struct, frozen=True, kw_only=True):
    """The fields of an answer or a line. Durations are nanoseconds; only the last line
    has durations and counts.
    """

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    logprobs: list[OllamaTokenLogprob] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class OllamaChatResponse(_OllamaLine, frozen=True, kw_only=True):
    message: OllamaAnswerMessage


class OllamaGenerateResponse(_OllamaLine, frozen=True, kw_only=True):
    """An answer of /api/generate, or a line of it.

    context: the token ids of prompt and answer; send them back to continue the
        conversation.
    """

    response: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET
    context: list[int] | UnsetType = UNSET


class OllamaEmbedResponse(Struct, frozen=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(Struct, frozen=True):
    embedding: list[float]


class OllamaTags(Struct, frozen=True):
    models: list[OllamaListedModel]


class OllamaProcesses(Struct, frozen=True):
    models: list[OllamaProcessModel]


class VersionObject(Struct, frozen=True):
    version: str
