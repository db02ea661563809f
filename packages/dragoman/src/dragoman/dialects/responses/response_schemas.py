"""The schemas of Responses' objects with their items, for the API description.

The writers build JSON without these structs; tests validate their output against them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

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
    """A call of OpenAI's shell tool, which the client runs, or a tool of the server's
    operator if its environment is a container.
    """

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


class McpListedTool(Struct, frozen=True):
    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None


class McpListToolsItem(Struct, frozen=True, tag_field="type", tag="mcp_list_tools"):
    """The tools of an MCP server, or the error with which listing them failed."""

    id: str
    server_label: str
    tools: list[McpListedTool]
    error: str | None


class McpCallItem(Struct, frozen=True, tag_field="type", tag="mcp_call"):
    """A call of an MCP server's tool, which the server makes.

    arguments: JSON text.
    output: what the tool returned, if the call is completed.
    error: why the call failed.
    approval_request_id: the request with which the client approved it, if any.
    """

    id: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: dict[str, Any] | None
    approval_request_id: str | None


class McpApprovalRequestItem(Struct, frozen=True, tag_field="type", tag="mcp_approval_request"):
    """A call that is made only after an `mcp_approval_response` of the client."""

    id: str
    server_label: str
    name: str
    arguments: str


class WebSearchSource(Struct, frozen=True):
    type: Literal["url"]
    url: str


class WebSearchAction(Struct, frozen=True):
    """A search. query, queries: only of a complete call. sources: the links that it found,
    if the request includes them.
    """

    type: Literal["search"]
    query: str | UnsetType = UNSET
    queries: list[str] | UnsetType = UNSET
    sources: list[WebSearchSource] | UnsetType = UNSET


class WebSearchCallItem(Struct, frozen=True, tag_field="type", tag="web_search_call"):
    """A web search by a tool of the server's operator."""

    id: str
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"]
    action: WebSearchAction


class CodeLogs(Struct, frozen=True):
    type: Literal["logs"]
    logs: str


class CodeInterpreterCallItem(Struct, frozen=True, tag_field="type", tag="code_interpreter_call"):
    """Code that a tool of the server's operator has run.

    outputs: what it has written, if the request includes it.
    """

    id: str
    status: Literal["in_progress", "interpreting", "completed", "incomplete", "failed"]
    code: str
    container_id: str
    outputs: list[CodeLogs] | None


class FileSearchResult(Struct, frozen=True):
    file_id: str | None
    filename: str | None
    score: float | None
    attributes: dict[str, Any] | None
    text: str | None


class FileSearchCallItem(Struct, frozen=True, tag_field="type", tag="file_search_call"):
    """A file search by a tool of the server's operator.

    results: what it has found, if the request includes it.
    """

    id: str
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"]
    queries: list[str]
    results: list[FileSearchResult] | None


class ImageGenerationError(Struct, frozen=True):
    type: str
    code: str | None
    param: str | None
    message: str


class ImageGenerationCallItem(Struct, frozen=True, tag_field="type", tag="image_generation_call"):
    """An image that a tool of the server's operator has generated.

    result: the image in base64, of a complete call.
    revised_prompt: the prompt that the model wrote.
    """

    id: str
    status: Literal["in_progress", "completed", "generating", "failed"]
    result: str | None
    output_format: str | UnsetType = UNSET
    revised_prompt: str | UnsetType | None = UNSET
    error: ImageGenerationError | UnsetType = UNSET
    background: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    size: str | UnsetType = UNSET


class ShellOutcome(Struct, frozen=True):
    """How a command ended. exit_code: unless its time ran out."""

    type: Literal["exit", "timeout"]
    exit_code: int | UnsetType = UNSET


class ShellOutput(Struct, frozen=True):
    stdout: str
    stderr: str
    outcome: ShellOutcome


class ShellCallOutputItem(Struct, frozen=True, tag_field="type", tag="shell_call_output"):
    """The output of a shell that a tool of the server's operator runs."""

    id: str
    status: ItemStatus
    call_id: str
    output: list[ShellOutput]
    max_output_length: int | None


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
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
    | WebSearchCallItem
    | CodeInterpreterCallItem
    | FileSearchCallItem
    | ImageGenerationCallItem
    | ShellCallOutputItem
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
