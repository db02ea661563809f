"""A Responses body as it comes: shapes and bounds alone. `items`, `tools` and `reader` know what it means."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..fields import AtLeastOne, CountOrRest, Decoding, JsonSchemaFormat, StreamOptions

MAX_INPUT = 100_000
"""Items of one input."""


class ImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None


class InputAudio(Struct, frozen=True):
    data: str
    format: str


class ContentPart(Struct, frozen=True):
    """One part of an item's content, summary or output; `type` says which of the other fields is meant."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: str | ImageUrl | None = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    input_audio: InputAudio | None = None


Content = str | list[ContentPart | str] | dict[str, Raw]
"""The object is what some hosted tools' items have there; nothing that is read here does."""


class WireItem(Struct, frozen=True):
    """One item of the input. Without a type it is a message, or a reference if it has no role."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    phase: str | None = None
    content: Content | None = None
    summary: Content | None = None
    encrypted_content: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Raw = Raw()
    input: Raw = Raw()
    output: Content | None = None


class ToolFormat(Struct, frozen=True):
    type: str
    syntax: str | None = None
    definition: str | None = None


class WireTool(Struct, frozen=True):
    """A tool, or a group of them: `type` says which of the other fields is meant."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None
    format: ToolFormat | None = None
    tools: list[WireTool] | None = None
    allowed_callers: list[str] | None = None


class NamedTool(Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    namespace: str | None = None


class WireToolChoice(Struct, frozen=True):
    type: str = "function"
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[NamedTool] | None = None


class TextFormat(JsonSchemaFormat, frozen=True, kw_only=True):
    type: str


class TextOptions(Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct, frozen=True):
    """generate_summary: the old name of `summary`."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ConversationId(Struct, frozen=True):
    id: str


class ResponsesBody(Decoding, frozen=True, kw_only=True):
    """A whole body. None: the client said nothing, or null."""

    model: str | None = None
    input: str | Annotated[list[WireItem], Meta(max_length=MAX_INPUT)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationId | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    tools: list[WireTool] | None = None
    tool_choice: str | WireToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: AtLeastOne | None = None
    max_output_tokens: CountOrRest | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=1_024)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=1_024)] | None = None
    service_tier: str | None = None

    stop: str | list[str] | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: CountOrRest | None = None
    chat_template: str | None = None
    chat_template_kwargs: Raw = Raw()
