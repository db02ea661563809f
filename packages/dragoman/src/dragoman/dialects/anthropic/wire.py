"""The structs of Messages bodies, with the support of every parameter.

`content_blocks` and `reader` parse a body. `cache_control` may occur anywhere and has no
effect: caching is automatic.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from ..bounds import MAX_MESSAGES, AtLeastOne, CountOrUnlimited
from ..generation_fields import DecodingFields
from ..json_body import HELLO, JsonBody
from ..parameter_table import (
    CACHE_THRESHOLD,
    SHARED_ROWS,
    Note,
    ParameterTable,
    accept,
    reject,
    warn,
)
from ..unknown_fields import NestedRules, TaggedFields
from .threads import ThreadReference


class CacheControl(Struct, frozen=True):
    """A mark for the vendor's cache; it is checked, and has no effect."""

    type: str
    ttl: str | None = None


class BlockSource(Struct, frozen=True):
    """The source of an image or a document; `type` selects the fields that apply."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[WireContentBlock] | None = None


class WireContentBlock(Struct, frozen=True):
    """One block of a message's content; `type` selects the fields that apply."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    source: BlockSource | str | None = None
    content: str | list[WireContentBlock] | dict[str, Any] | None = None
    id: str | None = None
    name: str | None = None
    server_name: str | None = None
    input: Raw = Raw()
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    title: str | None = None
    context: str | None = None
    url: str | None = None
    encrypted_content: str | None = None
    citations: Raw = Raw()
    tool: ToolChange | None = None
    cache_control: CacheControl | None = None


class ToolChange(Struct, frozen=True):
    """The tool of a `tool_addition` or `tool_removal`: a reference by name, or a
    definition.
    """

    type: str
    name: str | None = None
    definition: AnthropicWireTool | None = None


class AnthropicWireTool(Struct, frozen=True):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: Raw = Raw()
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    input_examples: list[Raw] | None = None
    display_width_px: int | None = None
    display_height_px: int | None = None
    enable_zoom: bool | None = None
    cache_control: CacheControl | None = None
    mcp_server_name: str | None = None
    default_config: McpToolConfig | None = None
    configs: dict[str, McpToolConfig] | None = None
    tools: Raw = Raw()
    max_uses: AtLeastOne | None = None
    allowed_domains: Raw = Raw()
    blocked_domains: Raw = Raw()
    user_location: Raw = Raw()


class McpToolConfig(Struct, frozen=True):
    """Whether tools of an MCP server may be called."""

    enabled: bool | None = None


class McpToolConfiguration(Struct, frozen=True):
    """The former place of a toolset's settings."""

    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class McpServerDefinition(Struct, frozen=True):
    """An MCP server whose tools this server calls.

    url: None means the operator's server of that name.
    """

    name: str
    type: str = "url"
    url: str | None = None
    authorization_token: str | None = None
    tool_configuration: McpToolConfiguration | None = None


class AnthropicWireToolChoice(Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, frozen=True):
    type: str
    budget_tokens: AtLeastOne | None = None
    display: str | None = None


class OutputFormat(Struct, frozen=True):
    type: str
    schema: Raw = Raw()


class OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class AnthropicWireMessage(Struct, frozen=True):
    """A message of any role.

    clear_at, output_config: only in system messages.
    """

    role: str
    content: str | list[WireContentBlock] | None = None
    clear_at: str | None = None
    output_config: OutputConfig | None = None


class EditThreshold(Struct, frozen=True):
    """A number with its unit.

    type: the counted unit, such as `input_tokens` or `tool_uses`.
    """

    type: str
    value: Annotated[int, Meta(ge=0)] | None = None


class WireEdit(Struct, frozen=True):
    type: str
    trigger: EditThreshold | None = None
    keep: Raw = Raw()
    clear_at_least: EditThreshold | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ContextManagement(Struct, frozen=True):
    edits: list[WireEdit] | None = None


_CUSTOM_TOOL = frozenset(
    {"name", "description", "input_schema", "strict", "allowed_callers", "input_examples"}
)
_HOSTED_TYPES = (
    "web_search_20250305",
    "web_search_20260209",
    "web_search_20260318",
    "code_execution_20250522",
    "code_execution_20250825",
    "code_execution_20260120",
    "code_execution_20260521",
)
_HOSTED_TOOL = _CUSTOM_TOOL | {"max_uses", "allowed_domains", "blocked_domains", "user_location"}
_TOOLSET = frozenset({"mcp_server_name", "default_config", "configs", "tools"})

MESSAGES_NESTED = NestedRules(
    accepted={
        # Hints for caches, and fields that clients replay from an answer.
        AnthropicWireMessage: frozenset({"cache_control", "id"}),
        WireContentBlock: frozenset({"cache_control", "caller", "toolset_name"}),
        AnthropicWireTool: frozenset({"cache_control", "defer_loading", "eager_input_streaming"})
        # Only for calls by hosted code, of which there are none.
        | {"response_inclusion"},
        # All tools are in the prompt.
        McpToolConfig: frozenset({"defer_loading"}),
        # Claude Code shares a cache between its users.
        CacheControl: frozenset({"scope"}),
    },
    checked_types={
        # The others are hosted tools and their blocks, or tools of a fixed form.
        WireContentBlock: frozenset(
            {"text", "image", "document", "search_result", "tool_use", "tool_result"}
        )
        | {"thinking", "redacted_thinking", "compaction", "tool_addition", "tool_removal"}
        | {"tool_reference"},
        AnthropicWireTool: frozenset({None, "custom", "mcp_toolset", *_HOSTED_TYPES}),
        # Other edits are reported as a whole.
        WireEdit: frozenset({"clear_tool_uses_20250919", "clear_thinking_20251015"}),
    },
    tagged={
        AnthropicWireMessage: TaggedFields(
            "role",
            {
                **dict.fromkeys(("user", "assistant"), frozenset({"content"})),
                "system": frozenset({"content", "clear_at", "output_config"}),
            },
        ),
        WireContentBlock: TaggedFields(
            "type",
            {
                "text": frozenset({"text", "citations"}),
                "image": frozenset({"source"}),
                "document": frozenset({"source", "title", "context", "citations"}),
                "search_result": frozenset({"source", "title", "content", "citations"}),
                "tool_use": frozenset({"id", "name", "input"}),
                "tool_result": frozenset({"tool_use_id", "content", "is_error"}),
                "tool_reference": frozenset({"tool_name"}),
                "thinking": frozenset({"thinking", "signature"}),
                "redacted_thinking": frozenset({"data"}),
                "compaction": frozenset({"content"}),
                **dict.fromkeys(("tool_addition", "tool_removal"), frozenset({"tool"})),
            },
        ),
        BlockSource: TaggedFields(
            "type",
            {
                **dict.fromkeys(("base64", "text"), frozenset({"media_type", "data"})),
                "url": frozenset({"url"}),
                "file": frozenset({"file_id"}),
                "content": frozenset({"content"}),
            },
        ),
        AnthropicWireTool: TaggedFields(
            "type",
            {
                **dict.fromkeys((None, "custom"), _CUSTOM_TOOL),
                **dict.fromkeys(_HOSTED_TYPES, _HOSTED_TOOL),
                "mcp_toolset": _TOOLSET,
            },
        ),
        McpServerDefinition: TaggedFields(
            "type",
            {"url": frozenset({"name", "url", "authorization_token", "tool_configuration"})},
        ),
        AnthropicWireToolChoice: TaggedFields(
            "type",
            {
                **dict.fromkeys(("auto", "any"), frozenset({"disable_parallel_tool_use"})),
                "tool": frozenset({"name", "disable_parallel_tool_use"}),
                "none": frozenset(),
            },
        ),
        ThinkingConfig: TaggedFields(
            "type",
            {
                # Dragoman enforces a budget of adaptive thinking too.
                **dict.fromkeys(("enabled", "adaptive"), frozenset({"budget_tokens", "display"})),
                "between_tools": frozenset({"display"}),
                "disabled": frozenset(),
            },
        ),
        WireEdit: TaggedFields(
            "type",
            {
                "clear_tool_uses_20250919": frozenset(
                    {"trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"}
                ),
                "clear_thinking_20251015": frozenset({"keep"}),
            },
        ),
    },
    values={CacheControl: {"type": ("ephemeral",), "ttl": ("5m", "1h")}},
)


class MessagesHistoryFields(Struct, frozen=True, kw_only=True):
    """The fields whose values differ from one request to the next."""

    messages: Annotated[
        Annotated[list[AnthropicWireMessage], Meta(min_length=1, max_length=MAX_MESSAGES)],
        Note(
            "user, assistant, system; adjacent messages of the same role form one turn; a final "
            "assistant message "
            "is continued. Blocks: text, image, document, search_result, tool_use, tool_result, "
            "thinking; hosted "
            "tools' calls and results are replayed as far as they can be parsed; thinking and "
            "redacted_thinking "
            "that this server did not sign or encrypt for this key are handled as "
            "--reasoning-verification "
            "specifies"
        ),
    ]
    system: Annotated[
        str | list[WireContentBlock] | None,
        Note(
            "a string or text blocks; Claude Code's billing header, which changes with each "
            "request, is omitted "
            "unless the server is configured to include it"
        ),
    ] = None


class MessagesPromptFields(Struct, frozen=True, kw_only=True):
    """The other fields that define the prompt; count_tokens accepts them too."""

    model: Annotated[str | None, Note("optional if the server has a default model")] = None
    tools: Annotated[
        list[AnthropicWireTool] | None,
        Note(
            "custom tools, and bash, text_editor, computer and memory as functions; mcp_toolset of "
            "a server in mcp_servers; web_search and code_execution if --hosted-tool names a tool "
            "for them; other hosted tools are omitted with "
            "a warning. Deferred tools are included in the prompt; input_examples are added to "
            "the description"
        ),
    ] = None
    tool_choice: Annotated[
        AnthropicWireToolChoice | None, Note("auto, any, tool, none, disable_parallel_tool_use")
    ] = None
    thinking: Annotated[
        ThinkingConfig | None,
        Note(
            "enabled and adaptive turn it on, between_tools only after a tool result, disabled "
            "turns it off; the "
            "default is the model's. budget_tokens is enforced; where the model cannot, it becomes "
            "an effort or is ignored, with a warning; display omitted returns no text"
        ),
    ] = None
    output_config: Annotated[OutputConfig | None, Note("effort, and format with json_schema")] = (
        None
    )
    output_format: Annotated[OutputFormat | None, Note("former name of output_config.format")] = (
        None
    )
    context_management: Annotated[
        ContextManagement | None,
        Note(
            "clear_tool_uses_20250919 and clear_thinking_20251015; other edits are ignored with a "
            "warning"
        ),
    ] = None
    thread: Annotated[
        Raw,
        Note(
            "create and continue; without a store, a 400 that makes the official SDK send the "
            "whole conversation"
        ),
    ] = Raw()
    cache_control: Annotated[
        CacheControl | None, Note("type and ttl are checked; caching is automatic")
    ] = None
    chat_template: Annotated[str | None, Note("if the server allows it")] = None
    chat_template_kwargs: Annotated[
        Raw,
        Note("keys that the server allows; enable_thinking and thinking turn thinking on or off"),
    ] = Raw()


MESSAGES_PROMPT = (MessagesHistoryFields, MessagesPromptFields)
"""The structs of all fields that define the prompt."""


class CacheDiagnosticsOptions(Struct, frozen=True):
    """A request to compare this prompt with an earlier one.

    previous_message_id: the id of that response; None only allows later comparisons.
    """

    previous_message_id: str | None = None


class MessagesMetadata(Struct, frozen=True):
    user_id: str | None = None


class MessagesBody(DecodingFields, frozen=True, kw_only=True):
    """The fields of a Messages body besides those of `MESSAGES_PROMPT`."""

    max_tokens: Annotated[
        CountOrUnlimited,
        Note("required; 0 only fills the prefix cache, -1 is the rest of the context"),
    ]
    stream: bool | None = None
    stop_sequences: Annotated[list[str] | None, Note("maximum count set by the server")] = None
    metadata: Annotated[MessagesMetadata | None, Note("user_id has no effect")] = None
    mcp_servers: Annotated[
        list[McpServerDefinition] | None,
        Note(
            "if this server has tool servers; a toolset in tools, or tool_configuration, selects "
            "their tools. Without url it is the operator's server of that name"
        ),
    ] = None
    diagnostics: Annotated[
        CacheDiagnosticsOptions | None,
        Note("the response tells how the prompt differs from the one of previous_message_id"),
    ] = None
    service_tier: Annotated[
        str | None, Note("auto and standard_only; there is one tier, reported as standard")
    ] = None


_UNSUPPORTED = (
    *accept("betas", note="beta headers of any value are accepted"),
    *accept(
        "user_profile_id", "workspace_id", "billing_policy", note="this server has no accounts"
    ),
    *accept("fallback_credit_token", note="this server does no billing"),
    *accept("stream_options", note="usage is always included"),
    *warn("inference_geo", "the location cannot be selected"),
    *warn("speed", "only the standard speed is available", "standard"),
    *warn("fallbacks", "fallback models are not supported", [], "default"),
    *reject("container", "code execution containers are not supported"),
    *reject("compaction", "compaction is not supported in Messages"),
    *reject("stop", "use stop_sequences", []),
    *reject("response_format", "use output_config.format", {"type": "text"}),
    *reject("n", "a message has exactly one answer", 1),
    *reject("best_of", "a message has exactly one answer", 1),
    *reject("logprobs", "a message has no field for them; use /v1/chat/completions", False),
    *reject("top_logprobs", "a message has no field for them; use /v1/chat/completions", 0),
    *reject("prompt_logprobs", "a message has no field for them; use /v1/chat/completions"),
    *reject("logprob_token_ids", "a message has no field for them; use /v1/chat/completions", []),
    *reject("return_token_ids", "a message has no field for them; use /v1/chat/completions", False),
)


MESSAGES = ParameterTable(
    "messages",
    (*MESSAGES_PROMPT, MessagesBody),
    (
        *SHARED_ROWS,
        *accept("session_id", note="a hint for routers"),
        *CACHE_THRESHOLD,
        *_UNSUPPORTED,
    ),
)
_NOT_COUNTED = [
    name
    for name in MESSAGES.names
    if not any(name in struct.__struct_fields__ for struct in MESSAGES_PROMPT)
]
COUNT_TOKENS = ParameterTable(
    "count_tokens",
    MESSAGES_PROMPT,
    accept(*_NOT_COUNTED, note="does not change the count"),
)


THREAD = JsonBody("Thread", (ThreadReference,))
MESSAGES_REQUEST = JsonBody(
    "MessagesRequest",
    (*MESSAGES_PROMPT, MessagesBody),
    MESSAGES,
    nested={"thread": THREAD},
    example={"max_tokens": 64, "messages": HELLO},
)
COUNT_REQUEST = JsonBody(
    "CountTokensRequest",
    MESSAGES_PROMPT,
    COUNT_TOKENS,
    nested={"thread": THREAD},
    example={"messages": HELLO},
)
