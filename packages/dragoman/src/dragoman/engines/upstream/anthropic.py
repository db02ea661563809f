"""Anthropic's Messages API as an upstream: encodes requests and reads the events of
responses. Pure.

Sources: the parameter types of anthropic-python 2.11 and the pages "Messages",
"Extended thinking" and "Prompt caching" of Anthropic's documentation.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ...core.errors import EngineError, RequestError, Unsupported
from ...core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import (
    Audio,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    SealKind,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from ...core.request import Conversation, GenerateRequest, JsonSchema
from .discovery import ServerKind
from .encode import (
    UpstreamDefaults,
    UpstreamRequest,
    build_media_url,
    encode_body,
    merge_sampling,
    require_conversation,
    resolve_max_tokens,
    select_tools,
    to_raw,
    warn_of_names,
)
from .errors import build_event_error, decode_data
from .wire import WireError

log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 8192
"""Limit for requests without one, since Messages requires it; no model since Claude 3.5
has a lower maximum.
"""
INVALID_JSON_KEY = "INVALID_JSON"
"""Anthropic's convention for arguments that are not a JSON object: they are sent as the
value of this key.
"""

_EFFORTS = {"minimal": "low"}
"""OpenAI's efforts that have another name in Messages."""
_INVALID_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
"""A character that Anthropic does not allow in the id of a tool call."""
_CACHE_MARK = {"type": "ephemeral"}
_ANSWERED_ROLES = (Role.USER, Role.TOOL)


def encode_messages_request(
    request: GenerateRequest, kind: ServerKind, model: str, defaults: UpstreamDefaults
) -> UpstreamRequest:
    """Encode a request. Raises Unsupported for features that Messages lacks,
    RequestError for invalid messages.
    """
    conversation = require_conversation(request, kind)
    warnings: list[str] = []
    sampling = merge_sampling(request.sampling, defaults.sampling)
    body = _encode_prompt(request, conversation, model, warnings)
    limit = resolve_max_tokens(request, defaults)
    if limit is None:
        # The thinking budget is part of the limit.
        limit = DEFAULT_MAX_TOKENS + (conversation.reasoning.budget or 0)
        warnings.append(f"max_tokens: the upstream requires a limit; it is {limit}")
    body |= {
        "max_tokens": limit,
        "stream": True,
        **{
            name: getattr(sampling, name)
            for name in sampling.list_set_fields()
            if name in kind.parameters
        },
    }
    if body.get("top_k") == 0:
        del body["top_k"]
    if request.limits.stop:
        body["stop_sequences"] = request.limits.stop
    return UpstreamRequest("/messages", encode_body(body), warnings=tuple(warnings))


def encode_count_request(request: GenerateRequest, kind: ServerKind, model: str) -> UpstreamRequest:
    """Encode a request to count the tokens of a prompt. Raises as
    `encode_messages_request`.
    """
    body = _encode_prompt(request, require_conversation(request, kind), model, [])
    return UpstreamRequest("/messages/count_tokens", encode_body(body))


def _encode_prompt(
    request: GenerateRequest, conversation: Conversation, model: str, warnings: list[str]
) -> dict[str, Any]:
    """Encode the fields that define the prompt."""
    continues = conversation.template.continue_final_message
    system, messages = _encode_messages(conversation.messages, warnings, continues=continues)
    if conversation.tools or any(message["role"] == "assistant" for message in messages):
        # The conversation will probably be continued, so its prefix is cached, as with
        # other engines.
        _mark_for_cache(system)
        for turn in [turn for turn in messages if turn["role"] == "user"][-1:]:
            _mark_for_cache(turn["content"])
    body: dict[str, Any] = {"model": model, "messages": messages}
    if system:
        body["system"] = system
    if conversation.tools:
        tools, choice = select_tools(conversation)
        body["tools"] = [_encode_tool(tool) for tool in tools]
        names = {"auto": {"type": "auto"}, "required": {"type": "any"}, "none": {"type": "none"}}
        encoded_choice: dict[str, Any] = names[choice.mode]
        if choice.names is not None and choice.mode != "none":
            # `select_tools` leaves names only in the choice of one named tool.
            encoded_choice = {"type": "tool", "name": choice.names[0]}
        if not conversation.parallel_tool_calls and choice.mode != "none":
            encoded_choice = {**encoded_choice, "disable_parallel_tool_use": True}
        if encoded_choice != {"type": "auto"}:
            body["tool_choice"] = encoded_choice
    output_config: dict[str, Any] = {}
    if isinstance(request.constraint, JsonSchema):
        output_config["format"] = {
            "type": "json_schema",
            "schema": to_raw(request.constraint.schema),
        }
    thinking, effort = _encode_thinking(conversation, warnings)
    if thinking is not None:
        body["thinking"] = thinking
    if effort is not None:
        output_config["effort"] = effort
    return body | ({"output_config": output_config} if output_config else {})


def _encode_thinking(
    conversation: Conversation, warnings: list[str]
) -> tuple[dict[str, Any] | None, str | None]:
    """Encode `thinking` and the effort. None leaves the choice to the model's default."""
    options = conversation.reasoning
    messages = conversation.messages
    effort = None if options.effort is None else _EFFORTS.get(options.effort, options.effort)
    if options.enabled is False or effort == "none" or options.budget == 0:
        return {"type": "disabled"}, None if effort == "none" else effort
    if options.budget is None:
        if not options.enabled and effort is None:
            return None, None
        # Without `display`, some models return no thinking text.
        return {"type": "adaptive", "display": "summarized"}, effort
    if messages and messages[-1].role is Role.TOOL:
        # With a budget, Messages rejects a conversation whose last turn calls tools,
        # unless the turn begins with its thinking.
        turn: list[Part] = []
        for message in reversed(messages):
            if message.role is Role.ASSISTANT:
                turn[:0] = message.parts
            elif message.role is not Role.TOOL:
                break
        if not turn or not isinstance(turn[0], Reasoning) or _encode_reasoning(turn[0]) is None:
            warnings.append(
                "thinking_token_budget is ignored: the turn that is being continued has no "
                "thinking with a signature"
            )
            return None, effort
    return {"type": "enabled", "budget_tokens": options.budget, "display": "summarized"}, effort


def _encode_messages(
    messages: Sequence[Message], warnings: list[str], *, continues: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Encode the system prompt's blocks, and the turns. Adjacent messages of one role
    are merged into one turn.

    continues: whether the client wants the last message to be continued.
    """
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        blocks = [
            block
            for part in message.parts
            if (block := _encode_part(part, message.role)) is not None
        ]
        # Later system messages remain turns: Claude Code ends its conversations with
        # one.
        if message.role in (Role.SYSTEM, Role.DEVELOPER) and not turns:
            system += blocks
            continue
        role = "user" if message.role in _ANSWERED_ROLES else message.role.value
        role = "system" if message.role is Role.DEVELOPER else role
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    warn_of_names(messages, warnings)
    if turns and turns[-1]["role"] == "assistant" and not continues:
        warnings.append(
            "messages: the upstream continues the last message, since it is an assistant message"
        )
    if any(
        isinstance(part, Reasoning) and _encode_reasoning(part) is None
        for m in messages
        for part in m.parts
    ):
        warnings.append(
            "messages: reasoning without a signature of the upstream's vendor was omitted"
        )
    return system, turns


def _mark_for_cache(blocks: list[dict[str, Any]]) -> None:
    """Mark the last block as the end of a prefix to cache."""
    if blocks:
        blocks[-1] = {**blocks[-1], "cache_control": _CACHE_MARK}


def _encode_part(part: Part, role: Role) -> dict[str, Any] | None:
    """Encode a part as a block; None for one that Messages cannot contain, such as a
    text of only white space.
    """
    match part:
        case Text(text) | Refusal(text):
            # Anthropic: "text content blocks must contain non-whitespace text". Other
            #     models begin calls with "\n\n".
            return {"type": "text", "text": text} if text and not text.isspace() else None
        case Reasoning():
            return _encode_reasoning(part)
        case Image(source):
            return {"type": "image", "source": _encode_source(source, "image/png")}
        case File():
            return _encode_document(part)
        case ToolCall(custom=True):
            raise Unsupported("The upstream does not support free-form tools.", param="messages")
        case ToolCall(id, name, arguments) if role is Role.ASSISTANT:
            try:
                is_object = isinstance(msgspec.json.decode(arguments or "{}"), dict)
            except (msgspec.MsgspecError, RecursionError):
                is_object = False
            encoded_input = (
                to_raw(arguments or "{}") if is_object else {INVALID_JSON_KEY: arguments}
            )
            return {"type": "tool_use", "id": _encode_id(id), "name": name, "input": encoded_input}
        case ToolResult(id, content, is_error) if role is not Role.ASSISTANT:
            blocks = [
                block for inner in content if (block := _encode_part(inner, role)) is not None
            ]
            error_field = {"is_error": True} if is_error else {}
            return {
                "type": "tool_result",
                "tool_use_id": _encode_id(id),
                "content": blocks,
                **error_field,
            }
        case ToolCall():
            raise RequestError(
                "Only an assistant message can contain tool calls.", param="messages"
            )
        case ToolResult():
            raise RequestError(
                "An assistant message cannot contain tool results.", param="messages"
            )
        case Audio():
            raise Unsupported("The upstream does not support audio.", param="messages")


def _encode_reasoning(part: Reasoning) -> dict[str, Any] | None:
    """Encode thinking that the upstream signed; None for any other, which Anthropic
    rejects.
    """
    if (signature := SealKind.ANTHROPIC.read(part.seal)) is not None:
        return {"type": "thinking", "thinking": part.text, "signature": signature}
    data = SealKind.ANTHROPIC_REDACTED.read(part.seal)
    return None if data is None else {"type": "redacted_thinking", "data": data}


def _encode_id(id: str) -> str:
    """Encode a call's id. Anthropic allows only letters, digits, `_` and `-`."""
    return _INVALID_ID_CHARACTER.sub("_", id)


def _encode_source(source: MediaSource, default_type: str) -> dict[str, Any]:
    match source:
        case InlineMedia(data, media_type):
            encoded = base64.b64encode(data).decode()
            return {"type": "base64", "media_type": media_type or default_type, "data": encoded}
        case _:
            return {"type": "url", "url": build_media_url(source)}


def _encode_document(file: File) -> dict[str, Any]:
    """Encode a document: a PDF, or a UTF-8 text."""
    source = _encode_source(file.source, "application/pdf")
    if isinstance(file.source, InlineMedia) and source["media_type"] != "application/pdf":
        try:
            source = {"type": "text", "media_type": "text/plain", "data": file.source.data.decode()}
        except UnicodeDecodeError:
            raise Unsupported(
                f"The upstream accepts only PDF and text, not {source['media_type']!r:.80}.",
                param="messages",
            ) from None
    title_field = {} if file.filename is None else {"title": file.filename}
    return {"type": "document", "source": source, **title_field}


def _encode_tool(tool: Tool) -> dict[str, Any]:
    assert isinstance(tool, FunctionTool)
    schema = msgspec.json.decode(tool.parameters or "{}")
    encoded: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        encoded["description"] = tool.description
    # Messages requires `input_schema` to have the type `object`.
    encoded["input_schema"] = (
        to_raw(tool.parameters or "") if schema.get("type") else {**schema, "type": "object"}
    )
    if tool.strict is not None:
        encoded["strict"] = tool.strict
    return encoded


# Reading the events of a response.

_REASONS = {
    "end_turn": FinishReason.STOP,
    "tool_use": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


class _OutputDetails(Struct, frozen=True, gc=False):
    thinking_tokens: int | None = None


class _Usage(Struct, frozen=True, gc=False):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Message(Struct, frozen=True):
    usage: _Usage | None = None


class _Block(Struct, frozen=True):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = Raw()


class _Delta(Struct, frozen=True, gc=False):
    """The delta of a block, or of the message, which has no type."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _WireEvent(Struct, frozen=True):
    """An event; `type` determines which fields it has. Unknown types are ignored:
    Anthropic may add new ones.
    """

    type: str
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: WireError | str | None = None


_decode = msgspec.json.Decoder(_WireEvent).decode


class MessageEventReader:
    """Implements `StreamReader` for the events of one message."""

    def __init__(self) -> None:
        self.has_started = self.is_done = False
        self.warnings: tuple[str, ...] = ()
        self._usage = Usage(0, 0)
        self._open: _Block | None = None
        self._open_index = -1
        self._signature: list[str] = []
        # Whether the open call has arguments so far; and whether an ended call had
        # none, so `{}` may have to be sent.
        self._has_arguments = self._owes_arguments = False
        self._has_finished = False

    def read(self, data: bytes) -> list[Event]:
        event = decode_data(_decode, data, "event")
        if event.type == "content_block_delta":
            return self._read_delta(event)
        events: list[Event] = []
        match event.type:
            case "error":
                raise build_event_error(event.error or WireError(), has_started=self.has_started)
            case "message_start":
                self._count(None if event.message is None else event.message.usage)
                self.has_started = True
                usage = self._usage
                events.append(
                    Started(
                        usage.prompt,
                        usage.cached,
                        written_tokens=usage.written,
                        warnings=self.warnings,
                    )
                )
            case "content_block_start":
                events = [*self._stop_block(), *self._start_block(event)]
            case "content_block_stop":
                events = self._stop_block()
            case "message_delta":
                self._count(event.usage)
                events = self._stop_block()
                delta = event.delta or _Delta()
                if delta.stop_reason is None:
                    return events
                reason = _REASONS.get(delta.stop_reason)
                if reason is None or not self.has_started or self._has_finished:
                    raise EngineError(
                        f"The upstream ended its response with {delta.stop_reason!r:.80}."
                    )
                self._has_finished = True
                # Only if the token limit did not cut the call before its arguments.
                if self._owes_arguments and reason is FinishReason.STOP:
                    events.append(ToolCallDelta(0, "{}"))
                stop = delta.stop_sequence if delta.stop_reason == "stop_sequence" else None
                events.append(ChoiceFinished(0, reason, stop))
            case "message_stop":
                self.is_done = True
            case _:
                pass
        return events

    def read_whole(self, body: bytes) -> list[Event]:
        del body
        raise EngineError("The upstream answered without a stream.")

    def close(self) -> list[Event]:
        if not self.is_done or not self._has_finished:
            raise EngineError("The upstream's answer was cut off.")
        return [Finished(self._usage)]

    def _start_block(self, event: _WireEvent) -> list[Event]:
        block = event.content_block
        if block is None or not self.has_started or self._has_finished:
            raise EngineError("The upstream sent an event out of order.")
        self._open = block
        self._open_index = -1 if event.index is None else event.index
        self._signature = [block.signature or ""]
        owed = [ToolCallDelta(0, "{}")] if self._owes_arguments else []
        self._has_arguments = self._owes_arguments = False
        match block.type:
            case "text" if block.text:
                return [*owed, TextDelta(0, block.text)]
            case "thinking" if block.thinking:
                return [*owed, ReasoningDelta(0, block.thinking)]
            case "redacted_thinking":
                return [
                    *owed,
                    ReasoningDelta(0, "", seal=SealKind.ANTHROPIC_REDACTED + (block.data or "")),
                ]
            case "tool_use":
                if not block.id or not block.name:
                    raise EngineError("The upstream started a tool call without a name or an id.")
                return [*owed, ToolCallStart(0, block.id, block.name)]
            case "text" | "thinking":
                return [*owed]
            case _:
                # Such as blocks of tools that the vendor runs, which no request asks
                # for.
                log.warning(
                    "a block of type %.40r in an upstream's response was ignored", block.type
                )
                return [*owed]

    def _read_delta(self, event: _WireEvent) -> list[Event]:
        block = self._open
        delta = event.delta
        if (
            block is None
            or delta is None
            or (event.index is not None and event.index != self._open_index)
        ):
            raise EngineError("The upstream sent an event out of order.")
        if delta.text and block.type == "text":
            return [TextDelta(0, delta.text)]
        if delta.thinking and block.type == "thinking":
            return [ReasoningDelta(0, delta.thinking)]
        if delta.signature:
            self._signature.append(delta.signature)
        if delta.partial_json and block.type == "tool_use":
            self._has_arguments = True
            return [ToolCallDelta(0, delta.partial_json)]
        return []

    def _stop_block(self) -> list[Event]:
        block = self._open
        self._open = None
        if block is None:
            return []
        if block.type == "thinking" and (signature := "".join(self._signature)):
            return [ReasoningDelta(0, "", seal=SealKind.ANTHROPIC + signature)]
        if block.type == "tool_use" and not self._has_arguments:
            # Some servers send the whole input in the block itself.
            if bytes(block.input) not in (b"", b"{}", b"null"):
                return [ToolCallDelta(0, bytes(block.input).decode())]
            # The next events show whether the call has no arguments, or the token limit
            # cut it before them.
            self._owes_arguments = True
        return []

    def _count(self, usage: _Usage | None) -> None:
        """Update the usage. The counts of `message_delta` are for the whole message;
        missing ones do not change.
        """
        if usage is None:
            return
        old = self._usage
        cached = (
            old.cached if usage.cache_read_input_tokens is None else usage.cache_read_input_tokens
        )
        written = (
            old.written
            if usage.cache_creation_input_tokens is None
            else usage.cache_creation_input_tokens
        )
        # Anthropic's `input_tokens` excludes tokens that are read from the cache or
        # written to it.
        uncached = old.prompt - (old.cached or 0) - (old.written or 0)
        uncached = uncached if usage.input_tokens is None else usage.input_tokens
        details = usage.output_tokens_details
        self._usage = Usage(
            uncached + (cached or 0) + (written or 0),
            old.completion if usage.output_tokens is None else usage.output_tokens,
            cached,
            old.reasoning if details is None else details.thinking_tokens,
            written,
        )


class TokenCountResponse(Struct, frozen=True):
    """The response of `/messages/count_tokens` and `/responses/input_tokens`."""

    input_tokens: int
