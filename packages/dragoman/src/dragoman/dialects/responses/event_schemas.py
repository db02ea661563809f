"""The schemas of Responses' stream events, for the API description.

`sequence_number` counts them from 0 without gaps.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from ..logprobs import ChatTokenLogprob
from ..openai_errors import OpenAIErrorDetail
from .response_schemas import (
    OutputItem,
    OutputText,
    ReasoningText,
    RefusalText,
    ResponseObject,
    ShellOutput,
    SummaryText,
)


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


class McpListInProgress(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_list_tools.in_progress"
):
    """The tools of an MCP server are listed."""


class McpListCompleted(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_list_tools.completed"
):
    """The MCP server has listed its tools."""


class McpListFailed(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_list_tools.failed"
):
    """The MCP server could not be used; the item has the error."""


class McpCallInProgress(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_call.in_progress"
):
    """The model begins a call of an MCP server's tool."""


class McpArgumentsDelta(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_call_arguments.delta"
):
    delta: str


class McpArgumentsDone(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_call_arguments.done"
):
    arguments: str


class McpCallCompleted(
    _ItemEvent, frozen=True, tag_field="type", tag="response.mcp_call.completed"
):
    """The call has returned; the item has its output."""


class McpCallFailed(_ItemEvent, frozen=True, tag_field="type", tag="response.mcp_call.failed"):
    """The call has failed; the item has the error."""


class Compacting(_ItemEvent, frozen=True, tag_field="type", tag="response.compaction.compacting"):
    """The summary is being written."""


class WebSearchInProgress(
    _ItemEvent, frozen=True, tag_field="type", tag="response.web_search_call.in_progress"
):
    """The model begins a search."""


class WebSearchSearching(
    _ItemEvent, frozen=True, tag_field="type", tag="response.web_search_call.searching"
):
    """The search runs."""


class WebSearchCompleted(
    _ItemEvent, frozen=True, tag_field="type", tag="response.web_search_call.completed"
):
    """The search has returned."""


class CodeInProgress(
    _ItemEvent, frozen=True, tag_field="type", tag="response.code_interpreter_call.in_progress"
):
    """The model begins to write code."""


class CodeDelta(
    _ItemEvent, frozen=True, tag_field="type", tag="response.code_interpreter_call_code.delta"
):
    delta: str


class CodeDone(
    _ItemEvent, frozen=True, tag_field="type", tag="response.code_interpreter_call_code.done"
):
    code: str


class CodeInterpreting(
    _ItemEvent, frozen=True, tag_field="type", tag="response.code_interpreter_call.interpreting"
):
    """The code runs."""


class CodeCompleted(
    _ItemEvent, frozen=True, tag_field="type", tag="response.code_interpreter_call.completed"
):
    """The code has run."""


class FileSearchInProgress(
    _ItemEvent, frozen=True, tag_field="type", tag="response.file_search_call.in_progress"
):
    """The model begins a search."""


class FileSearchSearching(
    _ItemEvent, frozen=True, tag_field="type", tag="response.file_search_call.searching"
):
    """The search runs."""


class FileSearchCompleted(
    _ItemEvent, frozen=True, tag_field="type", tag="response.file_search_call.completed"
):
    """The search has returned."""


class ImageInProgress(
    _ItemEvent, frozen=True, tag_field="type", tag="response.image_generation_call.in_progress"
):
    """The model begins to describe an image."""


class ImageGenerating(
    _ItemEvent, frozen=True, tag_field="type", tag="response.image_generation_call.generating"
):
    """The image is generated."""


class ImagePartial(
    _ItemEvent, frozen=True, tag_field="type", tag="response.image_generation_call.partial_image"
):
    """A draft of the image, in base64."""

    partial_image_index: int
    partial_image_b64: str


class ImageCompleted(
    _ItemEvent, frozen=True, tag_field="type", tag="response.image_generation_call.completed"
):
    """The image is complete."""


class ShellOutputPiece(Struct, frozen=True):
    """A piece of what a command has written; it has one of the two."""

    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET


class ShellOutputDelta(
    _ItemEvent, frozen=True, tag_field="type", tag="response.shell_call_output_content.delta"
):
    command_index: int
    delta: ShellOutputPiece


class ShellOutputDone(
    _ItemEvent, frozen=True, tag_field="type", tag="response.shell_call_output_content.done"
):
    command_index: int
    output: list[ShellOutput]


class AnnotationAdded(
    _PartEvent, frozen=True, tag_field="type", tag="response.output_text.annotation.added"
):
    """A citation of a link or a file that a search has found."""

    annotation_index: int
    annotation: dict[str, Any]


RESPONSE_EVENTS = (
    ResponseCreated, ResponseQueued, ResponseInProgress, ResponseCompleted, ResponseIncomplete,
    ResponseFailed,
    ResponseError, OutputItemAdded, OutputItemDone, ContentPartAdded, ContentPartDone,
    OutputTextDelta, OutputTextDone,
    RefusalTextDelta, RefusalTextDone, ReasoningTextDelta, ReasoningTextDone, SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta, SummaryTextDone, ArgumentsDelta, ArgumentsDone, CustomInputDelta,
    CustomInputDone,
    ShellCommandAdded, ShellCommandDelta, ShellCommandDone, Compacting,
    McpListInProgress, McpListCompleted, McpListFailed, McpCallInProgress, McpArgumentsDelta,
    McpArgumentsDone, McpCallCompleted, McpCallFailed, WebSearchInProgress,
    WebSearchSearching, WebSearchCompleted, CodeInProgress, CodeDelta, CodeDone, CodeInterpreting,
    CodeCompleted, AnnotationAdded, FileSearchInProgress, FileSearchSearching,
    FileSearchCompleted, ImageInProgress, ImageGenerating, ImagePartial, ImageCompleted,
    ShellOutputDelta, ShellOutputDone,
)  # fmt: skip
"""All events of streams and WebSockets."""
