"""A Chat Completions body as it comes: shapes and bounds alone. `messages`, `tools` and `reader` know what it means."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ..fields import MAX_MESSAGES, CountOrRest, Generation, Logprobs


class ImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None


class AudioUrl(Struct, frozen=True):
    url: str


class InputAudio(Struct, frozen=True):
    data: str
    format: str


class FileData(Struct, frozen=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class ContentPart(Struct, frozen=True):
    """One part of a message's content; `type` says which of the other fields is meant."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    image_url: ImageUrl | str | None = None
    audio_url: AudioUrl | str | None = None
    input_audio: InputAudio | None = None
    file: FileData | None = None


class CalledFunction(Struct, frozen=True):
    """arguments: a string as OpenAI has it; some local clients replay the object itself."""

    name: str
    arguments: Raw = Raw()


class CalledCustom(Struct, frozen=True):
    name: str
    input: str


class CalledTool(Struct, frozen=True):
    """`type` is left out by some clients; then the field that is there decides."""

    id: str
    type: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class WireMessage(Struct, frozen=True):
    """Any role's message. What does not belong to the role is ignored, as OpenAI does."""

    role: str
    content: str | list[ContentPart | str] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None


class FunctionDefinition(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None


class GrammarDefinition(Struct, frozen=True):
    definition: str
    syntax: str


class CustomFormat(Struct, frozen=True):
    """Chat nests the grammar, Responses does not; both come."""

    type: str
    grammar: GrammarDefinition | None = None
    definition: str | None = None
    syntax: str | None = None


class CustomDefinition(Struct, frozen=True):
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class WireTool(Struct, frozen=True):
    type: str = "function"
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class Named(Struct, frozen=True):
    name: str


class NamedTool(Struct, frozen=True):
    type: str = "function"
    function: Named | None = None
    custom: Named | None = None


class AllowedTools(Struct, frozen=True):
    mode: str
    tools: list[NamedTool]


class WireToolChoice(Struct, frozen=True):
    type: str = "function"
    function: Named | None = None
    custom: Named | None = None
    allowed_tools: AllowedTools | None = None


class Prompting(Struct, frozen=True, kw_only=True):
    """What makes the prompt; /tokenize takes these too."""

    messages: Annotated[list[WireMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: list[WireTool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Raw = Raw()
    documents: list[dict[str, str]] | None = None


class ChatBody(Generation, frozen=True, kw_only=True):
    """The rest of a chat body, beside `Prompting`."""

    max_completion_tokens: CountOrRest | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None
    tool_choice: str | WireToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: str | Named | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: CountOrRest | None = None
    include_reasoning: bool | None = None
    return_prompt_text: bool | None = None
    verbosity: str | None = None
    store: bool | None = None
