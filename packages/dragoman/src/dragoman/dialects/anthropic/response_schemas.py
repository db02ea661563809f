"""The schemas of Messages' responses, for the API description.

`writer` serializes the answer without these structs.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

StopReasonName = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "refusal",
    "model_context_window_exceeded",
]


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning.

    signature: lets the server recognize its own reasoning in a later request.
    """

    thinking: str
    signature: str


class RedactedThinkingBlock(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning of an upstream that only its vendor can read."""

    data: str


class ToolUseBlock(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock


class ThinkingTokenDetails(Struct, frozen=True):
    thinking_tokens: int


class MessagesUsage(Struct, frozen=True):
    """Token counts. Cached prompt tokens are counted apart from `input_tokens`; null is
    unknown.
    """

    input_tokens: int
    cache_creation_input_tokens: int | None
    cache_read_input_tokens: int | None
    output_tokens: int
    output_tokens_details: ThinkingTokenDetails | UnsetType = UNSET
    service_tier: Literal["standard"] | UnsetType = UNSET


class RefusalDetails(Struct, frozen=True, tag_field="type", tag="refusal"):
    category: None
    explanation: None


class ClearedToolUses(Struct, frozen=True, tag_field="type", tag="clear_tool_uses_20250919"):
    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinking(Struct, frozen=True, tag_field="type", tag="clear_thinking_20251015"):
    cleared_thinking_turns: int
    cleared_input_tokens: int


class AppliedContextEdits(Struct, frozen=True):
    applied_edits: list[ClearedToolUses | ClearedThinking]


class MessageResponse(Struct, frozen=True, tag_field="type", tag="message"):
    """An answer.

    stop_reason, stop_sequence: null in the first event of a stream.
    """

    id: str
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReasonName | None
    stop_sequence: str | None
    usage: MessagesUsage
    stop_details: RefusalDetails | UnsetType = UNSET
    context_management: AppliedContextEdits | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageResponse


class ContentBlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextBlockDelta(Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingBlockDelta(Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class ContentBlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class MessageEnd(Struct, frozen=True):
    stop_reason: StopReasonName
    stop_sequence: str | None
    stop_details: RefusalDetails | UnsetType = UNSET


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the answer, and its total usage."""

    delta: MessageEnd
    usage: MessagesUsage
    context_management: AppliedContextEdits | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


class PingEvent(Struct, frozen=True, tag_field="type", tag="ping"):
    """The event that keeps an idle stream alive."""


MESSAGE_EVENTS = (
    MessageStart, ContentBlockStart, ContentBlockDelta, ContentBlockStop, MessageDelta,
    MessageStop, PingEvent,
)  # fmt: skip
"""The events of a stream, besides `error`, which is the envelope of an error."""


class ContextTokens(Struct, frozen=True):
    original_input_tokens: int


class TokenCount(Struct, frozen=True):
    """The answer of /v1/messages/count_tokens.

    context_management: only if the request has context edits.
    """

    input_tokens: int
    context_management: ContextTokens | UnsetType = UNSET


class DeletedAnthropicFile(Struct, frozen=True, tag_field="type", tag="file_deleted"):
    id: str


class DeletedMessageBatch(Struct, frozen=True, tag_field="type", tag="message_batch_deleted"):
    id: str
