"""The structs of a Chat Completions body, and the support of every parameter.

They validate types and bounds only; `messages` and `reader` interpret the values.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from ...core.reasoning_details import ReasoningDetail
from ..bounds import MAX_MESSAGES, CountOrUnlimited, Logprobs
from ..generation_fields import (
    FORMAT_FIELDS,
    GenerationFields,
    ResponseFormat,
    StructuredOutputs,
)
from ..json_body import HELLO, JsonBody
from ..parameter_table import (
    CACHE_RETENTION,
    SHARED_ROWS,
    Note,
    ParameterTable,
    accept,
    reject,
    warn,
)
from ..unknown_fields import NestedRules, TaggedFields


class ChatImageUrl(Struct, frozen=True):
    url: str
    detail: str | None = None


class AudioUrl(Struct, frozen=True):
    url: str


class ChatInputAudio(Struct, frozen=True):
    data: str
    format: str


class FileData(Struct, frozen=True):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class ChatContentPart(Struct, frozen=True):
    """One part of a message's content; `type` selects the fields that apply."""

    type: str
    text: str | None = None
    refusal: str | None = None
    thinking: str | None = None
    image_url: ChatImageUrl | str | None = None
    audio_url: AudioUrl | str | None = None
    input_audio: ChatInputAudio | None = None
    file: FileData | None = None


class FunctionCallBody(Struct, frozen=True):
    """A function call in a message.

    arguments: a string, as in OpenAI's API; some local clients replay the object
        itself.
    """

    name: str
    arguments: Raw = Raw()


class CustomCallBody(Struct, frozen=True):
    name: str
    input: str


class ChatToolCall(Struct, frozen=True):
    """A tool call. Some clients omit `type`; then the field that is present decides."""

    id: str
    type: str | None = None
    function: FunctionCallBody | None = None
    custom: CustomCallBody | None = None


class ChatWireMessage(Struct, frozen=True):
    """A message of any role; `role` selects the fields that apply, see `CHAT_NESTED`.

    prefix, partial: the answer continues this message, if it is the last (DeepSeek and
        Mistral; Kimi and Qwen).
    """

    role: str
    content: str | list[ChatContentPart | str] | None = None
    name: Annotated[str, Meta(max_length=256)] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[ReasoningDetail] | None = None
    prefix: bool | None = None
    partial: bool | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCallBody | None = None


class FunctionDefinition(Struct, frozen=True):
    name: str
    description: str | None = None
    parameters: Raw = Raw()
    strict: bool | None = None


class GrammarDefinition(Struct, frozen=True):
    definition: str
    syntax: str


class CustomFormat(Struct, frozen=True):
    """A custom tool's format. Chat nests the grammar, Responses does not; clients send
    both.
    """

    type: str
    grammar: GrammarDefinition | None = None
    definition: str | None = None
    syntax: str | None = None


class CustomDefinition(Struct, frozen=True):
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class ChatWireTool(Struct, frozen=True):
    type: str = "function"
    function: FunctionDefinition | None = None
    custom: CustomDefinition | None = None


class NameReference(Struct, frozen=True):
    name: str


class ChatNamedTool(Struct, frozen=True):
    type: str = "function"
    function: NameReference | None = None
    custom: NameReference | None = None


class AllowedTools(Struct, frozen=True):
    mode: str
    tools: list[ChatNamedTool]


class ChatWireToolChoice(Struct, frozen=True):
    type: str = "function"
    function: NameReference | None = None
    custom: NameReference | None = None
    allowed_tools: AllowedTools | None = None


# `prefix` and `partial` have errors and warnings of their own.
_MESSAGE = frozenset({"content", "name", "prefix", "partial"})
_FUNCTION = frozenset({"function"})
_CUSTOM = frozenset({"custom"})
_BY_TOOL_TYPE = {None: _FUNCTION, "function": _FUNCTION, "custom": _CUSTOM}

CHAT_NESTED = NestedRules(
    accepted={
        # Fields that clients replay from an answer or its chunks, and hints for caches.
        ChatWireMessage: frozenset({"annotations", "cache_control", "id"}),
        ChatContentPart: frozenset({"annotations", "cache_control", "prompt_cache_breakpoint"}),
        ChatToolCall: frozenset({"index"}),
        ChatWireTool: frozenset({"cache_control"}),
        StructuredOutputs: frozenset({"disable_fallback"}),
    },
    checked_types={ChatWireTool: frozenset({None, "function", "custom"})},
    tagged={
        ChatWireMessage: TaggedFields(
            "role",
            {
                **dict.fromkeys(("developer", "system", "user", "function"), _MESSAGE),
                "assistant": _MESSAGE
                | {"reasoning", "reasoning_content", "reasoning_details", "refusal"}
                | {"tool_calls", "function_call"},
                "tool": _MESSAGE | {"tool_call_id"},
            },
        ),
        ChatContentPart: TaggedFields(
            "type",
            {
                **dict.fromkeys(("text", "input_text", "output_text"), frozenset({"text"})),
                "refusal": frozenset({"refusal"}),
                "thinking": frozenset({"thinking"}),
                "image_url": frozenset({"image_url"}),
                "audio_url": frozenset({"audio_url"}),
                "input_audio": frozenset({"input_audio"}),
                "file": frozenset({"file"}),
            },
        ),
        ChatToolCall: TaggedFields(
            "type",
            {
                None: frozenset({"id", "function", "custom"}),
                "function": frozenset({"id", "function"}),
                "custom": frozenset({"id", "custom"}),
            },
        ),
        ReasoningDetail: TaggedFields(
            "type",
            {
                "reasoning.text": frozenset({"id", "index", "text", "signature", "format"}),
                "reasoning.summary": frozenset({"id", "index", "summary", "format"}),
                "reasoning.encrypted": frozenset({"id", "index", "data", "summary", "format"}),
            },
        ),
        ChatWireTool: TaggedFields("type", _BY_TOOL_TYPE),
        ChatNamedTool: TaggedFields("type", _BY_TOOL_TYPE),
        ChatWireToolChoice: TaggedFields(
            "type", {**_BY_TOOL_TYPE, "allowed_tools": frozenset({"allowed_tools"})}
        ),
        CustomFormat: TaggedFields(
            "type",
            {"text": frozenset(), "grammar": frozenset({"grammar", "definition", "syntax"})},
        ),
        ResponseFormat: FORMAT_FIELDS,
    },
)


ChatMessageList = Annotated[list[ChatWireMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatMessageFields(Struct, frozen=True, kw_only=True):
    """The field whose value differs from one request to the next; /tokenize accepts it too."""

    messages: Annotated[
        ChatMessageList,
        Note(
            "all roles; text, image_url, input_audio, audio_url, file, refusal and thinking parts; "
            "reasoning_details are read; prefix or partial continue a final assistant message; an "
            "output without "
            "its call is refused"
        ),
    ]


class ChatTemplateFields(Struct, frozen=True, kw_only=True):
    """The fields that define the prompt besides its messages; /tokenize accepts them
    too.
    """

    tools: Annotated[
        list[ChatWireTool] | None,
        Note(
            "function, and custom with an enforced regex; lark grammars and hosted tools give a "
            "warning"
        ),
    ] = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[bool | None, Note("requires a final assistant message")] = (
        None
    )
    chat_template: Annotated[str | None, Note("if the server allows it")] = None
    chat_template_kwargs: Annotated[
        Raw,
        Note("keys that the server allows; enable_thinking and thinking turn reasoning on or off"),
    ] = Raw()
    documents: Annotated[
        list[dict[str, str]] | None, Note("a warning where the chat template does not read them")
    ] = None


CHAT_PROMPT = (ChatMessageFields, ChatTemplateFields)
"""The structs of the fields that define the prompt."""


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """The fields of a chat body besides those of the prompt."""

    max_completion_tokens: Annotated[
        CountOrUnlimited | None, Note("takes precedence over max_tokens")
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Logprobs | None, Note("0 to 20, requires logprobs; -1 is refused")] = (
        None
    )
    tool_choice: Annotated[str | ChatWireToolChoice | None, Note("all forms")] = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[
        list[FunctionDefinition] | None, Note("legacy; the answer has function_call")
    ] = None
    function_call: Annotated[str | NameReference | None, Note("legacy")] = None
    reasoning_effort: Annotated[str | None, Note("none turns reasoning off")] = None
    thinking_token_budget: Annotated[
        CountOrUnlimited | None, Note("-1 and null mean no budget")
    ] = None
    include_reasoning: Annotated[
        bool | None, Note("false hides the reasoning; its tokens still count")
    ] = None
    return_prompt_text: bool | None = None
    verbosity: Annotated[
        str | None, Note("validated; low and high have no effect and give a warning")
    ] = None
    store: Annotated[
        bool | None, Note("true stores the completion; a warning if the server has no store")
    ] = None


_UNSUPPORTED = (
    *CACHE_RETENTION,
    *accept("prompt_cache_key", "prompt_cache_options", note="caching is automatic"),
    *warn("prediction", "the prediction was not used; it does not affect the answer"),
    *reject("modalities", "only text output is supported", ["text"], []),
    *reject("audio", "only text output is supported"),
    *reject("web_search_options", "web search is not supported"),
    *reject("moderation", "moderation is not supported"),
    *reject("echo", "chat prompts cannot be echoed; see return_prompt_text", False),
    *reject("best_of", "use n", 1),
    *reject("media_io_kwargs", "media processing is configured by the server", {}),
    *reject("mm_processor_kwargs", "media processing is configured by the server", {}),
)

CHAT = ParameterTable(
    "chat",
    (*CHAT_PROMPT, ChatBody),
    (
        *SHARED_ROWS,
        *_UNSUPPORTED,
    ),
)


CHAT_REQUEST = JsonBody("ChatRequest", (*CHAT_PROMPT, ChatBody), CHAT, example={"messages": HELLO})
