"""The structs of a Messages body: shapes and bounds only; `content_blocks`, `messages`, `tools` and `reader` interpret
them.

`cache_control` may occur anywhere and is ignored: caching is automatic.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from ..body import NestedRules
from ..fields import MAX_MESSAGES, AtLeastOne, CountOrUnlimited, DecodingFields


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
    input: Raw = Raw()
    tool_use_id: str | None = None
    tool_name: str | None = None
    is_error: bool | None = None
    title: str | None = None
    context: str | None = None
    url: str | None = None
    citations: Raw = Raw()
    tool: ToolChange | None = None


class ToolChange(Struct, frozen=True):
    """The tool of a `tool_addition` or `tool_removal`: a reference by name, or a definition."""

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

    type: the unit that is counted.
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


MESSAGES_NESTED = NestedRules(
    accepted={
        # Hints for caches, and what clients replay from an answer.
        AnthropicWireMessage: frozenset({"cache_control", "id"}),
        WireContentBlock: frozenset({"cache_control", "caller"}),
        AnthropicWireTool: frozenset({"cache_control", "defer_loading", "eager_input_streaming"}),
    },
    checked_types={
        # The others are hosted tools and their blocks, or tools of a fixed form.
        WireContentBlock: frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result"})
        | {"thinking", "redacted_thinking", "compaction", "tool_addition", "tool_removal"},
        AnthropicWireTool: frozenset({None, "custom"}),
    },
)


class MessagesPromptFields(Struct, frozen=True, kw_only=True):
    """The fields that define the prompt; count_tokens accepts them too."""

    model: str | None = None
    messages: Annotated[list[AnthropicWireMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[WireContentBlock] | None = None
    tools: list[AnthropicWireTool] | None = None
    tool_choice: AnthropicWireToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None
    thread: Raw = Raw()
    chat_template: str | None = None
    chat_template_kwargs: Raw = Raw()


class MessagesMetadata(Struct, frozen=True):
    user_id: str | None = None


class MessagesBody(DecodingFields, frozen=True, kw_only=True):
    """The fields of a Messages body besides `MessagesPromptFields`."""

    max_tokens: CountOrUnlimited
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    metadata: MessagesMetadata | None = None
    service_tier: str | None = None
