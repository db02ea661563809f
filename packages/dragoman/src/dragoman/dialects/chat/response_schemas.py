"""The schemas of Chat Completions' responses, for the API description."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ...core.events import WeightSpan
from ..logprobs import ChatTokenLogprob, PromptLogprob
from ..openai_response_schemas import CompletionUsage
from ..vllm_response_fields import VllmRequestMetrics

ChatFinishReason = Literal[
    "stop",
    "length",
    "tool_calls",
    "function_call",
    "content_filter",
    "abort",
    "cache_threshold",
]
"""`abort` only in vLLM's profile; in OpenAI's an aborted answer ends with `length`."""


class ChatLogprobs(Struct, frozen=True):
    content: list[ChatTokenLogprob] | None
    refusal: list[ChatTokenLogprob] | None


class CalledFunction(Struct, frozen=True):
    """A called function.

    arguments: JSON text.
    """

    name: str
    arguments: str


class CalledCustomTool(Struct, frozen=True):
    name: str
    input: str


class AnsweredToolCall(Struct, frozen=True):
    """A tool call.

    function, custom: only the one that `type` names is present.
    """

    id: str
    type: Literal["function", "custom"]
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustomTool | UnsetType = UNSET


class AnsweredReasoning(Struct, frozen=True):
    """A part of the reasoning, signed or encrypted by its vendor, in OpenRouter's
    format. Send it back unchanged.

    format: the vendor's, such as `anthropic-claude-v1` or `openai-responses-v1`.
    id: the vendor's id of the part.
    index: index of the part.
    """

    type: Literal["reasoning.text", "reasoning.summary", "reasoning.encrypted"]
    index: int
    format: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    summary: str | UnsetType = UNSET
    data: str | UnsetType = UNSET


class ChatAnswerMessage(Struct, frozen=True):
    """The answer of one choice.

    content: null if the answer has only reasoning, a refusal or tool calls.
    reasoning, reasoning_content: the same text under the two names that clients read.
    reasoning_details: only from an upstream that verifies its own reasoning.
    function_call: the answer to the legacy field `functions`.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: UnsetType | None = UNSET
    audio: UnsetType | None = UNSET
    function_call: CalledFunction | UnsetType | None = UNSET
    tool_calls: list[AnsweredToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning_details: list[AnsweredReasoning] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    """One answer.

    stop_reason: the stop string or token id that ended the answer.
    token_ids: token ids of the answer (`return_token_ids`).
    weight_versions: versions of the weights that sampled the tokens
        (`return_weight_versions`).
    """

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    weight_versions: list[WeightSpan] | UnsetType | None = UNSET


class ChatCompletion(Struct, frozen=True):
    """A complete answer.

    created: Unix seconds.
    prompt_token_ids, prompt_text: the rendered prompt (`return_token_ids`,
        `return_prompt_text`).
    prompt_logprobs: logprobs by token id, for each position of the prompt.
    metadata: only in a stored completion.
    """

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    service_tier: Literal["default"] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType | None = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType | None = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    metrics: VllmRequestMetrics | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True):
    """A piece of a called function. Only the first piece has the name."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CustomToolDelta(Struct, frozen=True):
    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ChatToolCallDelta(Struct, frozen=True):
    """A piece of a tool call. Only the first piece has the id and the type."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomToolDelta | UnsetType = UNSET


class ChatDelta(Struct, frozen=True):
    """The piece of the answer in a chunk: first the role, then one field in each chunk;
    empty in the last.
    """

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning_details: list[AnsweredReasoning] | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    tool_calls: list[ChatToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET
    weight_versions: list[WeightSpan] | UnsetType | None = UNSET


class ChatCompletionChunk(Struct, frozen=True):
    """One event of a stream. The chunk with `usage` and no choices comes last
    (`stream_options.include_usage`).
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    service_tier: Literal["default"] | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType | None = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET
    metrics: VllmRequestMetrics | UnsetType = UNSET
