"""The schemas of Responses' responses, items and stream events, for the API
description.

The writers build JSON without these structs; tests validate their output against them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from ..errors import OpenAIErrorDetail
from ..logprobs import ChatTokenLogprob
from .wire import ConversationId

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[ChatTokenLogprob]


class RefusalText(Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    detail: str
    image_url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET


class InputFile(Struct, frozen=True, tag_field="type", tag="input_file"):
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


class InputAudioData(Struct, frozen=True):
    data: str
    format: str


class InputAudio(Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: InputAudioData


class MessageItem(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the assistant, or an input message that a compaction keeps."""

    id: str
    status: ItemStatus
    role: Literal["assistant", "user", "system", "developer"]
    content: list[OutputText | RefusalText | InputText | InputImage | InputFile | InputAudio]
    phase: str | UnsetType = UNSET


class ReasoningItem(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning, as a summary or as its full text.

    encrypted_content: the encrypted reasoning, to send back when responses are not
        stored (`include`).
    """

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A function call.

    arguments: JSON text.
    namespace: namespace in which the tool was declared, if any.
    """

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(Struct, frozen=True, tag_field="type", tag="custom_tool_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class CompactionItem(Struct, frozen=True, tag_field="type", tag="compaction"):
    """The summary of a conversation, which only this server can decrypt."""

    id: str
    encrypted_content: str


class ShellCallItem(Struct, frozen=True, tag_field="type", tag="shell_call"):
    """A call of OpenAI's shell tool, which the client runs."""

    id: str
    status: ItemStatus
    call_id: str
    action: dict[str, Any]
    environment: dict[str, Any]


class LocalShellCallItem(Struct, frozen=True, tag_field="type", tag="local_shell_call"):
    id: str
    status: ItemStatus
    call_id: str
    action: dict[str, Any]


class ApplyPatchCallItem(Struct, frozen=True, tag_field="type", tag="apply_patch_call"):
    id: str
    status: ItemStatus
    call_id: str
    operation: dict[str, Any]


class ComputerCallItem(Struct, frozen=True, tag_field="type", tag="computer_call"):
    """A call of OpenAI's computer tool.

    action: only for the tool's preview version.
    actions: for its current version.
    """

    id: str
    status: ItemStatus
    call_id: str
    pending_safety_checks: list[dict[str, Any]]
    actions: list[dict[str, Any]] | UnsetType = UNSET
    action: dict[str, Any] | UnsetType = UNSET


class ToolSearchCallItem(Struct, frozen=True, tag_field="type", tag="tool_search_call"):
    id: str
    status: ItemStatus
    call_id: str
    execution: Literal["client"]
    arguments: dict[str, Any]


OutputItem = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | CompactionItem
    | ShellCallItem
    | LocalShellCallItem
    | ApplyPatchCallItem
    | ComputerCallItem
    | ToolSearchCallItem
)


class InputTokenDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokenDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class ResponseFailure(Struct, frozen=True):
    code: Literal[
        "rate_limit_exceeded", "context_length_exceeded", "invalid_prompt", "server_error"
    ]
    message: str


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens", "content_filter"]


class EchoedReasoning(Struct, frozen=True):
    effort: str | None
    summary: str | None


class EchoedText(Struct, frozen=True):
    """The format of the text.

    format: the request's format with all fields present.
    """

    format: dict[str, Any]
    verbosity: str | UnsetType = UNSET


class ResponseObject(Struct, frozen=True):
    """A response. The fields from `previous_response_id` on repeat the request.

    created_at, completed_at: Unix seconds.
    usage: null until the response ends.
    """

    id: str
    object: Literal["response"]
    created_at: int
    status: ResponseStatus
    completed_at: int | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    previous_response_id: str | None
    store: bool
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    prompt_cache_key: str | None
    reasoning: EchoedReasoning
    safety_identifier: str | None
    service_tier: Literal["default"]
    temperature: float
    text: EchoedText
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    conversation: ConversationId | UnsetType = UNSET
    user: str | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class Compaction(Struct, frozen=True):
    """The response of /v1/responses/compact: the user's messages and the compaction."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[OutputItem]
    usage: ResponseUsage


class InputTokenCount(Struct, frozen=True):
    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(Struct, frozen=True):
    id: str
    object: Literal["response"]
    deleted: bool


class ConversationObject(Struct, frozen=True):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(Struct, frozen=True):
    id: str
    object: Literal["conversation.deleted"]
    deleted: bool


# Stream events. `sequence_number` counts them from 0 without gaps.


class ResponseCreated(Struct, frozen=True, tag_field="type", tag="response.created"):
    sequence_number: int
    response: ResponseObject


class ResponseQueued(Struct, frozen=True, tag_field="type", tag="response.queued"):
    sequence_number: int
    response: ResponseObject


class ResponseInProgress(Struct, frozen=True, tag_field="type", tag="response.in_progress"):
    """The response is in progress. Sent again as a keepalive while no tokens are
    generated.
    """

    sequence_number: int
    response: ResponseObject


class ResponseCompleted(Struct, frozen=True, tag_field="type", tag="response.completed"):
    sequence_number: int
    response: ResponseObject


class ResponseIncomplete(Struct, frozen=True, tag_field="type", tag="response.incomplete"):
    sequence_number: int
    response: ResponseObject


class ResponseFailed(Struct, frozen=True, tag_field="type", tag="response.failed"):
    sequence_number: int
    response: ResponseObject


class ResponseError(Struct, frozen=True, tag_field="type", tag="error"):
    """An error, flat for OpenAI's clients and nested for those of Open Responses;
    `response.failed` follows.
    """

    sequence_number: int
    code: str | None
    message: str
    param: str | None
    error: OpenAIErrorDetail


class OutputItemAdded(Struct, frozen=True, tag_field="type", tag="response.output_item.added"):
    sequence_number: int
    output_index: int
    item: OutputItem


class OutputItemDone(Struct, frozen=True, tag_field="type", tag="response.output_item.done"):
    sequence_number: int
    output_index: int
    item: OutputItem


class _PartEvent(Struct, frozen=True):
    """The location of a part of an item's content."""

    sequence_number: int
    item_id: str
    output_index: int
    content_index: int


class ContentPartAdded(
    _PartEvent, frozen=True, tag_field="type", tag="response.content_part.added"
):
    part: OutputText | RefusalText | ReasoningText


class ContentPartDone(_PartEvent, frozen=True, tag_field="type", tag="response.content_part.done"):
    part: OutputText | RefusalText | ReasoningText


class OutputTextDelta(_PartEvent, frozen=True, tag_field="type", tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatTokenLogprob]


class OutputTextDone(_PartEvent, frozen=True, tag_field="type", tag="response.output_text.done"):
    text: str
    logprobs: list[ChatTokenLogprob]


class RefusalTextDelta(_PartEvent, frozen=True, tag_field="type", tag="response.refusal.delta"):
    delta: str


class RefusalTextDone(_PartEvent, frozen=True, tag_field="type", tag="response.refusal.done"):
    refusal: str


class ReasoningTextDelta(
    _PartEvent, frozen=True, tag_field="type", tag="response.reasoning_text.delta"
):
    delta: str


class ReasoningTextDone(
    _PartEvent, frozen=True, tag_field="type", tag="response.reasoning_text.done"
):
    text: str


class _SummaryEvent(Struct, frozen=True):
    """The location of a part of a reasoning summary."""

    sequence_number: int
    item_id: str
    output_index: int
    summary_index: int


class SummaryPartAdded(
    _SummaryEvent, frozen=True, tag_field="type", tag="response.reasoning_summary_part.added"
):
    part: SummaryText


class SummaryPartDone(
    _SummaryEvent, frozen=True, tag_field="type", tag="response.reasoning_summary_part.done"
):
    part: SummaryText


class SummaryTextDelta(
    _SummaryEvent, frozen=True, tag_field="type", tag="response.reasoning_summary_text.delta"
):
    delta: str


class SummaryTextDone(
    _SummaryEvent, frozen=True, tag_field="type", tag="response.reasoning_summary_text.done"
):
    text: str


class _ItemEvent(Struct, frozen=True):
    """The location of an item."""

    sequence_number: int
    item_id: str
    output_index: int


class ArgumentsDelta(
    _ItemEvent, frozen=True, tag_field="type", tag="response.function_call_arguments.delta"
):
    delta: str


class ArgumentsDone(
    _ItemEvent, frozen=True, tag_field="type", tag="response.function_call_arguments.done"
):
    name: str
    arguments: str


class CustomInputDelta(
    _ItemEvent, frozen=True, tag_field="type", tag="response.custom_tool_call_input.delta"
):
    delta: str


class CustomInputDone(
    _ItemEvent, frozen=True, tag_field="type", tag="response.custom_tool_call_input.done"
):
    input: str


class _CommandEvent(Struct, frozen=True):
    """The location of a command of a shell call."""

    sequence_number: int
    output_index: int
    command_index: int


class ShellCommandAdded(
    _CommandEvent, frozen=True, tag_field="type", tag="response.shell_call_command.added"
):
    command: str


class ShellCommandDelta(
    _CommandEvent, frozen=True, tag_field="type", tag="response.shell_call_command.delta"
):
    delta: str


class ShellCommandDone(
    _CommandEvent, frozen=True, tag_field="type", tag="response.shell_call_command.done"
):
    command: str


class Compacting(_ItemEvent, frozen=True, tag_field="type", tag="response.compaction.compacting"):
    """The summary is being written."""


RESPONSE_EVENTS = (
    ResponseCreated, ResponseQueued, ResponseInProgress, ResponseCompleted, ResponseIncomplete, ResponseFailed,
    ResponseError, OutputItemAdded, OutputItemDone, ContentPartAdded, ContentPartDone, OutputTextDelta, OutputTextDone,
    RefusalTextDelta, RefusalTextDone, ReasoningTextDelta, ReasoningTextDone, SummaryPartAdded, SummaryPartDone,
    SummaryTextDelta, SummaryTextDone, ArgumentsDelta, ArgumentsDone, CustomInputDelta, CustomInputDone,
    ShellCommandAdded, ShellCommandDelta, ShellCommandDone, Compacting,
)  # fmt: skip
"""All events of streams and WebSockets."""
