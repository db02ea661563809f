"""The structs of a Responses body, and the table of its parameters: which are supported
and how.

Only shapes and bounds are checked here; `item_reader`, `tool_registry` and `reader`
interpret the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from ..bounds import AtLeastOne, CountOrUnlimited
from ..generation_fields import DecodingFields, JsonSchemaFormat, StreamOptions
from ..json_body import JsonBody
from ..json_encoding import escape_line_breaks
from ..parameter_table import (
    CACHE_RETENTION,
    CACHE_THRESHOLD,
    SHARED_ROWS,
    Note,
    ParameterTable,
    accept,
    reject,
    warn,
)
from ..unknown_fields import NestedRules, TaggedFields

MAX_INPUT_ITEMS = 100_000
"""Maximum items of one input."""


class ResponsesImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None


class ResponsesInputAudio(Struct, frozen=True):
    data: str
    format: str


class ResponsesContentPart(Struct, frozen=True):
    """One part of an item's content, summary or output; `type` selects the fields that
    apply.
    """

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: str | ResponsesImageUrl | None = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: ResponsesInputAudio | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: Raw = Raw()


WireContent = str | list[ResponsesContentPart | str] | dict[str, Raw]
"""Some hosted tools' items have an object here; it is ignored."""


class WireItem(Struct, frozen=True):
    """One item of the input. Without a type it is a message, or a reference if it has
    no role.

    action, actions, operation: the arguments of calls of client tools, see
        `client_tools`.
    tools: the tools that a tool search found, or additional tools.
    reasoning, text: the settings of a `configuration_update`.
    code, error, outputs, queries, result, results, revised_prompt: of hosted tools'
        calls, see `hosted_tools`.
    server_label, approval_request_id, approve, reason: of tools of MCP servers.
    """

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    phase: str | None = None
    content: WireContent | None = None
    summary: WireContent | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Raw = Raw()
    input: Raw = Raw()
    output: WireContent | None = None
    action: Raw = Raw()
    actions: Raw = Raw()
    operation: Raw = Raw()
    tools: Raw = Raw()
    reasoning: Raw = Raw()
    text: Raw = Raw()
    code: Raw = Raw()
    error: Raw = Raw()
    outputs: Raw = Raw()
    queries: Raw = Raw()
    result: Raw = Raw()
    results: Raw = Raw()
    revised_prompt: Raw = Raw()
    server_label: str | None = None
    approval_request_id: str | None = None
    approve: bool | None = None
    reason: str | None = None


class CustomToolFormat(Struct, frozen=True):
    type: str
    syntax: str | None = None
    definition: str | None = None


class ResponsesWireTool(Struct, frozen=True):
    """A tool or a namespace of tools; `type` selects the fields that apply."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None
    format: CustomToolFormat | None = None
    tools: list[ResponsesWireTool] | None = None
    allowed_callers: list[str] | None = None
    environment: Raw = Raw()
    display_width: int | None = None
    display_height: int | None = None
    execution: str | None = None
    server_label: str | None = None
    server_url: str | None = None
    server_description: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: Raw = Raw()
    require_approval: Raw = Raw()
    container: Raw = Raw()
    filters: Raw = Raw()
    search_context_size: Raw = Raw()
    search_content_types: Raw = Raw()
    external_web_access: Raw = Raw()
    user_location: Raw = Raw()
    vector_store_ids: Raw = Raw()
    max_num_results: Raw = Raw()
    ranking_options: Raw = Raw()
    action: Raw = Raw()
    background: Raw = Raw()
    complexity: Raw = Raw()
    frame_count: Raw = Raw()
    frame_duration_ms: Raw = Raw()
    input_fidelity: Raw = Raw()
    input_image_mask: Raw = Raw()
    model: Raw = Raw()
    moderation: Raw = Raw()
    output_compression: Raw = Raw()
    output_format: Raw = Raw()
    partial_images: Raw = Raw()
    quality: Raw = Raw()
    size: Raw = Raw()
    svg: Raw = Raw()


class WebSearchOptions(Struct, frozen=True, kw_only=True):
    filters: Raw = Raw()
    search_context_size: Raw = Raw()
    search_content_types: Raw = Raw()
    external_web_access: Raw = Raw()
    user_location: Raw = Raw()


class CodeInterpreterOptions(Struct, frozen=True, kw_only=True):
    container: Raw = Raw()


class FileSearchOptions(Struct, frozen=True, kw_only=True):
    vector_store_ids: list[str]
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    filters: dict[str, Raw] | None = None
    ranking_options: dict[str, Raw] | None = None


class ImageGenerationOptions(Struct, frozen=True, kw_only=True):
    action: Literal["generate", "edit", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    frame_count: AtLeastOne | None = None
    frame_duration_ms: AtLeastOne | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: dict[str, Raw] | None = None
    model: str | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: str | None = None
    svg: dict[str, Raw] | None = None


class NewContainer(Struct, frozen=True, tag_field="type", tag="container_auto"):
    """A container for one response."""


class ContainerReference(Struct, frozen=True, tag_field="type", tag="container_reference"):
    container_id: str


class ShellOptions(Struct, frozen=True, kw_only=True):
    environment: NewContainer | ContainerReference


class ResponsesNamedTool(Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    namespace: str | None = None
    server_label: str | None = None


class ResponsesWireToolChoice(Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[ResponsesNamedTool] | None = None
    server_label: str | None = None


class TextFormat(JsonSchemaFormat, frozen=True, kw_only=True):
    type: str


class TextOptions(Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(Struct, frozen=True):
    """The `reasoning` field of a request.

    generate_summary: the former name of `summary`.
    """

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ConversationId(Struct, frozen=True):
    id: str


class BackgroundOptions(Struct, frozen=True):
    """How soon a background response is wanted, and what it belongs to.

    completion_window: soonest, 2h, or 8h.
    """

    completion_window: str | None = None
    continuation_id: str | None = None


class PromptCacheOptions(Struct, frozen=True):
    """The client's wishes for the cache of its prompts.

    comparison_response_id: the response with which a diagnosis compares this one.
    mode: implicit or explicit.
    prewarm: only fill the cache.
    """

    comparison_response_id: str | None = None
    mode: str | None = None
    prewarm: bool | None = None
    ttl: str | None = None


_ITEM = frozenset({"id", "status"})
_CALL = _ITEM | {"call_id", "name", "namespace"}
_OUTPUT = _ITEM | {"call_id", "output"}
_ITEM_FIELDS: Mapping[str | None, frozenset[str]] = {
    # Without a type it is a message or a reference.
    None: _ITEM | {"role", "content", "phase"},
    "message": _ITEM | {"role", "content", "phase"},
    "reasoning": _ITEM | {"content", "summary", "encrypted_content"},
    "function_call": _CALL | {"arguments"},
    "custom_tool_call": _CALL | {"input"},
    "function_call_output": _CALL | {"output"},
    "custom_tool_call_output": _CALL | {"output"},
    "item_reference": _ITEM,
    "compaction": _ITEM | {"encrypted_content"},
    "compaction_trigger": _ITEM,
    "configuration_update": _ITEM | {"reasoning", "text"},
    "additional_tools": _ITEM | {"role", "tools"},
    "shell_call": _ITEM | {"call_id", "action", "environment"},
    "shell_call_output": _OUTPUT | {"max_output_length"},
    "local_shell_call": _ITEM | {"call_id", "action"},
    "local_shell_call_output": _OUTPUT,
    "apply_patch_call": _ITEM | {"call_id", "operation"},
    "apply_patch_call_output": _OUTPUT,
    "computer_call": _ITEM | {"call_id", "action", "actions", "pending_safety_checks"},
    "computer_call_output": _OUTPUT | {"acknowledged_safety_checks"},
    "tool_search_call": _ITEM | {"call_id", "arguments", "execution"},
    "tool_search_output": _ITEM | {"call_id", "tools", "execution"},
}
"""The fields of an item by its type. Items of hosted tools are the vendor's own."""
_PART_FIELDS: Mapping[str | None, frozenset[str]] = {
    # The output of a shell.
    None: frozenset({"stdout", "stderr", "outcome"}),
    **dict.fromkeys(
        ("input_text", "output_text", "text", "summary_text", "reasoning_text"),
        frozenset({"text"}),
    ),
    "refusal": frozenset({"refusal"}),
    "input_image": frozenset({"image_url", "detail", "file_id"}),
    "input_file": frozenset({"file_id", "file_data", "file_url", "filename"}),
    "input_audio": frozenset({"input_audio"}),
}
_CALLERS = frozenset({"allowed_callers"})
WEB_SEARCH_TYPES = (
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
)
_TOOL_FIELDS: Mapping[str | None, frozenset[str]] = {
    "function": _CALLERS | {"name", "description", "parameters", "strict"},
    "custom": _CALLERS | {"name", "description", "format"},
    "namespace": _CALLERS | {"name", "description", "tools"},
    "local_shell": _CALLERS,
    "shell": _CALLERS | {"environment"},
    "apply_patch": _CALLERS,
    "computer": _CALLERS,
    "computer_use_preview": _CALLERS | {"display_width", "display_height", "environment"},
    "tool_search": _CALLERS | {"execution", "description", "parameters"},
    "code_interpreter": _CALLERS | set(CodeInterpreterOptions.__struct_fields__),
    **dict.fromkeys(WEB_SEARCH_TYPES, _CALLERS | set(WebSearchOptions.__struct_fields__)),
    "file_search": _CALLERS | set(FileSearchOptions.__struct_fields__),
    "image_generation": _CALLERS | set(ImageGenerationOptions.__struct_fields__),
    "mcp": _CALLERS
    | {
        "server_label",
        "server_url",
        "server_description",
        "connector_id",
        "tunnel_id",
        "authorization",
        "headers",
        "allowed_tools",
        "require_approval",
    },
}
_NAMED = frozenset({"name", "namespace"})
_SERVER_TOOL = frozenset({"server_label", "name"})

RESPONSES_NESTED = NestedRules(
    accepted={
        # What clients replay from an answer, and hints for caches.
        ResponsesContentPart: frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"}),
        WireItem: frozenset({"created_by", "caller", "internal_chat_message_metadata_passthrough"}),
        ResponsesWireTool: frozenset({"defer_loading", "output_schema"}),
    },
    checked_types={
        # The others are reported as a whole.
        WireItem: frozenset(_ITEM_FIELDS),
        ResponsesWireTool: frozenset(_TOOL_FIELDS),
        ResponsesWireToolChoice: frozenset({"function", "custom", "allowed_tools", "mcp"}),
    },
    tagged={
        WireItem: TaggedFields("type", _ITEM_FIELDS),
        ResponsesContentPart: TaggedFields("type", _PART_FIELDS),
        ResponsesWireTool: TaggedFields("type", _TOOL_FIELDS),
        ResponsesNamedTool: TaggedFields(
            "type", {"function": _NAMED, "custom": _NAMED, "mcp": _SERVER_TOOL}
        ),
        ResponsesWireToolChoice: TaggedFields(
            "type",
            {
                "function": _NAMED,
                "custom": _NAMED,
                "allowed_tools": frozenset({"mode", "tools"}),
                "mcp": _SERVER_TOOL,
            },
        ),
        CustomToolFormat: TaggedFields(
            "type", {"text": frozenset(), "grammar": frozenset({"syntax", "definition"})}
        ),
        TextFormat: TaggedFields(
            "type",
            {
                "text": frozenset(),
                "json_object": frozenset(),
                "json_schema": frozenset({"name", "description", "schema", "strict"}),
            },
        ),
    },
    values={WireItem: {"phase": ("commentary", "final_answer")}},
)


class ResponsesInputFields(Struct, frozen=True, kw_only=True):
    """The fields whose values differ from one request to the next. None: the client sent
    null or nothing.
    """

    input: Annotated[
        str | Annotated[list[WireItem], Meta(max_length=MAX_INPUT_ITEMS)] | None,
        Note(
            "a string, or items: messages of all roles with text, refusal, input_image, "
            "input_file and "
            "input_audio parts; function and custom calls and their outputs; calls and outputs of "
            "shell, "
            "local_shell, apply_patch, computer and tool_search, whose found tools can be called "
            "from then on; "
            "additional_tools; configuration_update, of which the last one replaces "
            "reasoning.effort or "
            "text.format; reasoning, item_reference, compaction and compaction_trigger. Calls of "
            "hosted tools with the readable part of their results, as calls of functions; "
            "lists of MCP tools and MCP approvals apply to the servers in tools"
        ),
    ] = None
    instructions: Annotated[str | None, Note("a system message before all others")] = None
    previous_response_id: Annotated[
        str | None,
        Note(
            "a stored response with status completed or incomplete; not together with conversation"
        ),
    ] = None
    conversation: Annotated[
        str | ConversationId | None,
        Note("an id, or an object with an id; receives the input and output of a stored response"),
    ] = None


class ResponsesBody(DecodingFields, frozen=True, kw_only=True):
    """All other fields of a body. None: the client sent null or nothing."""

    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    store: Annotated[
        bool | None,
        Note(
            "true by default; without a store the response has false, with a warning if true was "
            "requested"
        ),
    ] = None
    background: Annotated[bool | None, Note("true requires store")] = None
    background_options: Annotated[
        BackgroundOptions | None,
        Note(
            "a background response starts at once, which satisfies every completion_window; "
            "continuation_id has no effect"
        ),
    ] = None
    stream: bool | None = None
    stream_options: Annotated[
        StreamOptions | None, Note("include_obfuscation: true is refused; usage is always included")
    ] = None
    include: Annotated[
        list[str] | None,
        Note(
            "message.output_text.logprobs; reasoning.encrypted_content, which only this server "
            "can decrypt, for "
            "the same API key; web_search_call.action.sources, code_interpreter_call.outputs "
            "and file_search_call.results of the server's own tools. Other values have no effect"
        ),
    ] = None
    tools: Annotated[
        list[ResponsesWireTool] | None,
        Note(
            "function, namespace, and custom with an enforced regex; shell and local_shell, "
            "apply_patch, "
            "computer, computer_use_preview and tool_search with execution client as functions, "
            "whose calls are "
            "items of their own types; web_search, code_interpreter, file_search, "
            "image_generation and a shell in a container if the server's operator "
            "runs them; mcp if this server has tool "
            "servers; lark grammars and other hosted tools give a warning"
        ),
    ] = None
    tool_choice: Annotated[
        str | ResponsesWireToolChoice | None,
        Note("all forms; a hosted tool that the server does not run is refused"),
    ] = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[AtLeastOne | None, Note("limits calls of MCP tools")] = None
    max_output_tokens: Annotated[
        CountOrUnlimited | None, Note("1 or more; -1 and null are the rest of the context")
    ] = None
    text: Annotated[
        TextOptions | None,
        Note(
            "format text, json_object and json_schema; verbosity: low and high have no effect and "
            "give a warning"
        ),
    ] = None
    reasoning: Annotated[
        ReasoningConfig | None,
        Note(
            "effort (none turns reasoning off); with summary the reasoning is returned as a "
            "summary, otherwise as "
            "reasoning_text; context and mode give a warning"
        ),
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, Note("0 to 20; more than 0 includes the logprobs")
    ] = None
    truncation: Annotated[
        str | None,
        Note(
            "auto omits the oldest whole turns (calls together with their results) of a "
            "conversation that does "
            "not fit; a warning gives the number of omitted messages; the instructions, the last "
            "question and the "
            "last turn remain"
        ),
    ] = None
    metadata: Annotated[
        dict[str, str] | None,
        Note("at most 16 keys of 64 characters with values of 512 characters; echoed"),
    ] = None
    user: Annotated[str | None, Note("echoed; identifies the end user, has no effect")] = None
    safety_identifier: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None,
        Note("echoed; identifies the end user, has no effect"),
    ] = None
    prompt_cache_key: Annotated[
        Annotated[str, Meta(max_length=1_024)] | None, Note("echoed; caching is automatic")
    ] = None
    prompt_cache_options: Annotated[
        PromptCacheOptions | None,
        Note(
            "caching is automatic, so mode and ttl have no effect; comparison_response_id gives a "
            "warning, and prewarm is refused: on a WebSocket, generate: false fills the cache"
        ),
    ] = None
    service_tier: Annotated[
        str | None, Note("there is one tier, reported as `default`; other values give a warning")
    ] = None

    stop: Annotated[
        str | list[str] | None, Note("vLLM's: a string or a list; maximum count set by the server")
    ] = None
    include_reasoning: Annotated[
        bool | None, Note("vLLM's: false hides the reasoning; its tokens still count")
    ] = None
    thinking_token_budget: Annotated[
        CountOrUnlimited | None, Note("-1 and null mean no budget")
    ] = None
    chat_template: Annotated[str | None, Note("if the server allows it")] = None
    chat_template_kwargs: Annotated[
        Raw,
        Note("keys that the server allows; enable_thinking and thinking turn reasoning on or off"),
    ] = Raw()


def minify(raw: Raw) -> bytes:
    """Render JSON without whitespace; `null` if absent. `raw` must be valid JSON, as
    after `read_json_object`.
    """
    text = bytes(raw).strip()
    return escape_line_breaks(msgspec.json.format(text, indent=-1)) if text else b"null"


_USE_CHAT = "a response has no field for them; use /v1/chat/completions"

_UNSUPPORTED = (
    *CACHE_RETENTION,
    *accept("client_metadata", note="metadata of agents; has no effect"),
    *accept("access_programs", note="this server has no accounts"),
    *accept("betas", note="beta headers of any value are accepted"),
    *warn(
        "image",
        "images are not compressed",
        {},
        {"context_compression": "auto"},
        {"context_compression": "disabled"},
    ),
    *reject("multi_agent", "the server runs no other agents", {}, {"enabled": False}),
    *warn(
        "context_management",
        "automatic compaction is not supported; end the input with a compaction_trigger",
        [],
    ),
    *reject("prompt", "prompt templates are not stored; send their text"),
    *reject("moderation", "moderation is not supported"),
    *reject("n", "a response has exactly one answer", 1),
    *reject("best_of", "a response has exactly one answer", 1),
    *reject("max_tokens", "use max_output_tokens"),
    *reject("max_completion_tokens", "use max_output_tokens"),
    *reject("response_format", "use text.format", {"type": "text"}),
    *reject("reasoning_effort", "use reasoning.effort"),
    *reject("logprobs", "use top_logprobs, or include message.output_text.logprobs", False),
    *reject("prompt_logprobs", _USE_CHAT),
    *reject("logprob_token_ids", _USE_CHAT, []),
    *reject("return_token_ids", _USE_CHAT, False),
    *reject("return_tokens_as_token_ids", _USE_CHAT, False),
    *reject("enable_response_messages", "raw messages are not returned", False),
    *reject("previous_input_messages", "send the conversation in input"),
    *reject("media_io_kwargs", "media processing is configured by the server", {}),
    *reject("mm_processor_kwargs", "media processing is configured by the server", {}),
)


RESPONSES = ParameterTable(
    "responses",
    (ResponsesInputFields, ResponsesBody),
    (
        # Responses echoes some of the fields that the other dialects only accept.
        *(row for row in SHARED_ROWS if row.name not in ResponsesBody.__struct_fields__),
        *accept("session_id", note="a hint for routers"),
        *CACHE_THRESHOLD,
        *_UNSUPPORTED,
    ),
)


RESPONSE_REQUEST = JsonBody(
    "ResponseRequest",
    (ResponsesInputFields, ResponsesBody),
    RESPONSES,
    example={"input": "Hello"},
)
