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


class SearchCitation(Struct, frozen=True, tag_field="type", tag="web_search_result_location"):
    """A link of a search that a text names.

    cited_text: what the search has returned for it; empty if unknown.
    """

    url: str
    title: str
    encrypted_index: str
    cited_text: str


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    text: str
    citations: list[SearchCitation] | UnsetType = UNSET


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


class McpToolUseBlock(Struct, frozen=True, tag_field="type", tag="mcp_tool_use"):
    """A call of an MCP server's tool, which the server makes."""

    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class McpToolResultBlock(Struct, frozen=True, tag_field="type", tag="mcp_tool_result"):
    """What such a call returned."""

    tool_use_id: str
    is_error: bool
    content: list[TextBlock]


class ServerToolUseBlock(Struct, frozen=True, tag_field="type", tag="server_tool_use"):
    """A call of a hosted tool, which the server makes."""

    id: str
    name: Literal["web_search", "code_execution"]
    input: dict[str, Any]


class WebSearchResult(Struct, frozen=True, tag_field="type", tag="web_search_result"):
    """A link that a search found.

    encrypted_content: what the search returned, for a later request; only in the first.
    """

    url: str
    title: str
    encrypted_content: str
    page_age: None


class WebSearchError(Struct, frozen=True, tag_field="type", tag="web_search_tool_result_error"):
    error_code: Literal[
        "invalid_tool_input", "unavailable", "max_uses_exceeded", "too_many_requests"
    ]


class WebSearchToolResultBlock(Struct, frozen=True, tag_field="type", tag="web_search_tool_result"):
    tool_use_id: str
    content: list[WebSearchResult] | WebSearchError


class CodeExecutionResult(Struct, frozen=True, tag_field="type", tag="code_execution_result"):
    """What the code wrote. content: files that it made; this server returns none."""

    stdout: str
    stderr: str
    return_code: int
    content: list[dict[str, Any]]


class CodeExecutionError(
    Struct, frozen=True, tag_field="type", tag="code_execution_tool_result_error"
):
    error_code: Literal[
        "invalid_tool_input", "unavailable", "too_many_requests", "execution_time_exceeded"
    ]


class CodeExecutionToolResultBlock(
    Struct, frozen=True, tag_field="type", tag="code_execution_tool_result"
):
    tool_use_id: str
    content: CodeExecutionResult | CodeExecutionError


AnswerBlock = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | ServerToolUseBlock
    | WebSearchToolResultBlock
    | CodeExecutionToolResultBlock
)


class ThinkingTokenDetails(Struct, frozen=True):
    thinking_tokens: int


class ServerToolUsage(Struct, frozen=True):
    """The calls of hosted tools that succeeded."""

    web_search_requests: int
    web_fetch_requests: int


class MessagesUsage(Struct, frozen=True):
    """Token counts. Cached prompt tokens are counted apart from `input_tokens`; null is
    unknown.
    """

    input_tokens: int
    cache_creation_input_tokens: int | None
    cache_read_input_tokens: int | None
    output_tokens: int
    output_tokens_details: ThinkingTokenDetails | UnsetType = UNSET
    server_tool_use: ServerToolUsage | UnsetType = UNSET
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


class CacheMissReason(Struct, frozen=True):
    """Why the prefix of an earlier prompt cannot be reused.

    cache_missed_input_tokens: an estimate, of a reason that names what has changed.
    """

    type: Literal[
        "model_changed",
        "system_changed",
        "tools_changed",
        "messages_changed",
        "previous_message_not_found",
        "unavailable",
    ]
    cache_missed_input_tokens: int | UnsetType = UNSET


class CacheDiagnostics(Struct, frozen=True):
    cache_miss_reason: CacheMissReason


class MessageResponse(Struct, frozen=True, tag_field="type", tag="message"):
    """An answer.

    stop_reason, stop_sequence: null in the first event of a stream.
    diagnostics: if requested; null if the prompt begins with the earlier one.
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
    diagnostics: CacheDiagnostics | UnsetType | None = UNSET
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


class CitationsDelta(Struct, frozen=True, tag_field="type", tag="citations_delta"):
    citation: SearchCitation


class InputJsonDelta(Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta | CitationsDelta


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
