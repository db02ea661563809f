"""The structs of a Responses body, and the support of every parameter of Responses.

Shapes and bounds only; `items`, `tools` and `reader` interpret them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ..body import NestedRules
from ..fields import AtLeastOne, CountOrUnlimited, DecodingFields, JsonSchemaFormat, StreamOptions
from ..json_encoding import escape_line_breaks
from ..parameter_table import (
    SHARED_HONOURED,
    ParameterTable,
    accept,
    build_shared_rows,
    honour,
    reject,
    warn,
)

MAX_INPUT_ITEMS = 100_000
"""Maximum items of one input."""


class ResponsesImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None


class ResponsesInputAudio(Struct, frozen=True):
    data: str
    format: str


class ResponsesContentPart(Struct, frozen=True):
    """One part of an item's content, summary or output; `type` selects the fields that apply."""

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
    """One item of the input. Without a type it is a message, or a reference if it has no role.

    action, actions, operation: of calls of tools that the client runs, see `client_tools`.
    tools: what a tool search found, or further tools.
    reasoning, text: of an update of the configuration.
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


class ResponsesNamedTool(Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    namespace: str | None = None


class ResponsesWireToolChoice(Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[ResponsesNamedTool] | None = None


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


RESPONSES_NESTED = NestedRules(
    accepted={
        # What clients replay from an answer, and hints for caches.
        ResponsesContentPart: frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"}),
        WireItem: frozenset({"created_by", "caller", "internal_chat_message_metadata_passthrough"})
        # Of calls of tools that the client runs, and of their outputs.
        | {"environment", "execution", "max_output_length", "pending_safety_checks", "acknowledged_safety_checks"},
        ResponsesWireTool: frozenset({"defer_loading", "output_schema"}),
    },
    checked_types={
        # The others are reported as a whole.
        WireItem: frozenset({None, "message", "reasoning", "function_call", "function_call_output", "custom_tool_call"})
        | {"custom_tool_call_output", "item_reference", "compaction", "compaction_trigger", "configuration_update"}
        | {"additional_tools", "shell_call", "shell_call_output", "local_shell_call", "local_shell_call_output"}
        | {"apply_patch_call", "apply_patch_call_output", "computer_call", "computer_call_output"},
        ResponsesWireTool: frozenset({"function", "custom", "namespace", "local_shell", "apply_patch"})
        | {"computer", "computer_use_preview"},
        ResponsesWireToolChoice: frozenset({"function", "custom", "allowed_tools"}),
    },
)


class ResponsesBody(DecodingFields, frozen=True, kw_only=True):
    """A whole body. None: the client sent null or nothing."""

    model: str | None = None
    input: str | Annotated[list[WireItem], Meta(max_length=MAX_INPUT_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationId | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    tools: list[ResponsesWireTool] | None = None
    tool_choice: str | ResponsesWireToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: AtLeastOne | None = None
    max_output_tokens: CountOrUnlimited | None = None
    text: TextOptions | None = None
    reasoning: ReasoningConfig | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=1_024)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=1_024)] | None = None
    service_tier: str | None = None

    stop: str | list[str] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: CountOrUnlimited | None = None
    chat_template: str | None = None
    chat_template_kwargs: Raw = Raw()


def minify(raw: Raw) -> bytes:
    """null if absent. `raw` must have been validated before, as by `read_json_object`."""
    text = bytes(raw).strip()
    return escape_line_breaks(msgspec.json.format(text, indent=-1)) if text else b"null"


DIALECT = "responses"

_HONOURED = (
    ("model", "optional if the server has a default model"),
    (
        "input",
        "a string, or items: messages of all roles with text, refusal, input_image, input_file and input_audio parts; "
        "function and custom calls and their outputs; calls and outputs of shell, local_shell, apply_patch, computer "
        "and tool_search, whose found tools can be called from then on; additional_tools; configuration_update, of "
        "which the last one replaces reasoning.effort or text.format; reasoning, item_reference, compaction and "
        "compaction_trigger. Items of hosted tools are omitted with a warning",
    ),
    ("instructions", "a system message before all others"),
    ("previous_response_id", "a stored response with status completed or incomplete; not together with conversation"),
    ("conversation", "an id, or an object with an id; receives the input and output of a stored response"),
    ("store", "true by default; without a store the response has false, with a warning if true was requested"),
    ("background", "true requires store"),
    ("stream", ""),
    ("stream_options", "include_obfuscation: true is refused; usage is always included"),
    (
        "include",
        "message.output_text.logprobs; reasoning.encrypted_content, which only this server can decrypt, for the same "
        "API key. Other values belong to hosted tools and have no effect",
    ),
    (
        "tools",
        "function, namespace, and custom with an enforced regex; shell and local_shell, apply_patch, computer, "
        "computer_use_preview and tool_search with execution client as functions, whose calls are items of their own "
        "types; lark grammars, hosted tools and a shell in a container give a warning",
    ),
    ("tool_choice", "all forms; a hosted tool is refused"),
    ("parallel_tool_calls", ""),
    ("max_tool_calls", "limits calls of hosted tools; there are none"),
    ("max_output_tokens", "1 or more; -1 and null are the rest of the context"),
    ("text", "format text, json_object and json_schema; verbosity: low and high have no effect and give a warning"),
    (
        "reasoning",
        "effort (none turns reasoning off); with summary the reasoning is returned as a summary, otherwise as "
        "reasoning_text; context and mode give a warning",
    ),
    ("top_logprobs", "0 to 20; more than 0 includes the logprobs"),
    (
        "truncation",
        "auto omits the oldest whole turns (calls together with their results) of a conversation that does not fit; "
        "a warning gives the number of omitted messages; the instructions, the last question and the last turn remain",
    ),
    ("metadata", "at most 16 keys of 64 characters with values of 512 characters; echoed"),
    ("user", "echoed; identifies the end user, has no effect"),
    ("safety_identifier", "echoed; identifies the end user, has no effect"),
    ("prompt_cache_key", "echoed; caching is automatic"),
    ("service_tier", "there is one tier, reported as `default`; other values give a warning"),
    ("stop", "vLLM's: a string or a list; maximum count set by the server"),
    ("include_reasoning", "vLLM's: false hides the reasoning; its tokens still count"),
    ("thinking_token_budget", "-1 and null mean no budget"),
    ("chat_template", "if the server allows it"),
    ("chat_template_kwargs", "keys that the server allows; enable_thinking and thinking turn reasoning on or off"),
)

_NOTES = dict(SHARED_HONOURED)
_USE_CHAT = "a response has no field for them; use /v1/chat/completions"

_UNSUPPORTED = (
    *accept(DIALECT, "prompt_cache_retention", "prompt_cache_options", note="caching is automatic"),
    *accept(DIALECT, "client_metadata", note="metadata of agents; has no effect"),
    *warn(
        DIALECT,
        "context_management",
        "automatic compaction is not supported; end the input with a compaction_trigger",
        [],
    ),
    *reject(DIALECT, "prompt", "stored prompts are not supported"),
    *reject(DIALECT, "moderation", "moderation is not supported"),
    *reject(DIALECT, "n", "a response has exactly one answer", 1),
    *reject(DIALECT, "best_of", "a response has exactly one answer", 1),
    *reject(DIALECT, "max_tokens", "use max_output_tokens"),
    *reject(DIALECT, "max_completion_tokens", "use max_output_tokens"),
    *reject(DIALECT, "response_format", "use text.format", {"type": "text"}),
    *reject(DIALECT, "reasoning_effort", "use reasoning.effort"),
    *reject(DIALECT, "logprobs", "use top_logprobs, or include message.output_text.logprobs", False),
    *reject(DIALECT, "prompt_logprobs", _USE_CHAT),
    *reject(DIALECT, "logprob_token_ids", _USE_CHAT, []),
    *reject(DIALECT, "return_token_ids", _USE_CHAT, False),
    *reject(DIALECT, "return_tokens_as_token_ids", _USE_CHAT, False),
    *reject(DIALECT, "enable_response_messages", "raw messages are not returned", False),
    *reject(DIALECT, "previous_input_messages", "send the conversation in input"),
    *reject(DIALECT, "media_io_kwargs", "media processing is configured by the server", {}),
    *reject(DIALECT, "mm_processor_kwargs", "media processing is configured by the server", {}),
)


_OWN_NOTES = (*_HONOURED, *((name, _NOTES[name]) for name in DecodingFields.__struct_fields__))
_OWN_ROWS = tuple(row for name, note in _OWN_NOTES for row in honour(DIALECT, name, note=note))
_OWN_NAMES = {row.name for row in _OWN_ROWS}
_SHARED_ROWS = (row for row in build_shared_rows(DIALECT) if row.name not in _OWN_NAMES)
_SESSION = accept(DIALECT, "session_id", note="a hint for routers")

RESPONSES = ParameterTable((*_OWN_ROWS, *_SHARED_ROWS, *_SESSION, *_UNSUPPORTED))
