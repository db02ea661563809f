"""The structs of a Responses body: shapes and bounds only; `items`, `tools` and `reader` interpret them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..body import NestedRules
from ..fields import AtLeastOne, CountOrUnlimited, DecodingFields, JsonSchemaFormat, StreamOptions

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
