"""OpenAI's Responses API as an upstream: encodes requests and reads the events of
responses. Does no I/O.

Nothing is stored at the upstream: each request contains the whole conversation, with
its encrypted reasoning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ...core.errors import EngineError, RequestError, Unsupported
from ...core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    Finished,
    ReasoningDelta,
    RefusalDelta,
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
    Message,
    Part,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    SealKind,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from ...core.request import Conversation, GenerateRequest, JsonObject, JsonSchema
from .discovery import ServerKind
from .encode import (
    UpstreamDefaults,
    UpstreamRequest,
    build_media_url,
    encode_body,
    merge_sampling,
    require_conversation,
    resolve_max_tokens,
    state_failure,
    to_raw,
    warn_of_names,
)
from .errors import build_event_error, decode_data
from .wire import WireError

log = logging.getLogger(__name__)


def encode_responses_request(
    request: GenerateRequest, kind: ServerKind, model: str, defaults: UpstreamDefaults
) -> UpstreamRequest:
    """Encode a request. Raises Unsupported for what Responses lacks, RequestError for
    what it cannot represent.
    """
    conversation = require_conversation(request, kind)
    if conversation.template.continue_final_message:
        raise Unsupported(
            "The upstream does not support continuing a message.", param="continue_final_message"
        )
    warnings: list[str] = []
    sampling = merge_sampling(request.sampling, defaults.sampling)
    body = _encode_prompt(request, conversation, model, warnings) | {
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        **{
            name: getattr(sampling, name)
            for name in sampling.list_set_fields()
            if name in kind.parameters
        },
    }
    if (limit := resolve_max_tokens(request, defaults)) is not None:
        body["max_output_tokens"] = limit
    return UpstreamRequest("/responses", encode_body(body), warnings=tuple(warnings))


def encode_input_tokens_request(
    request: GenerateRequest, kind: ServerKind, model: str
) -> UpstreamRequest:
    """Encode a request that counts the tokens of a prompt. Raises the errors of
    `encode_responses_request`.
    """
    body = _encode_prompt(request, require_conversation(request, kind), model, [])
    return UpstreamRequest("/responses/input_tokens", encode_body(body))


def _encode_prompt(
    request: GenerateRequest, conversation: Conversation, model: str, warnings: list[str]
) -> dict[str, Any]:
    """Encode the fields that define the prompt."""
    body: dict[str, Any] = {
        "model": model,
        "input": list(_encode_items(conversation.messages, warnings)),
    }
    choice = conversation.tool_choice
    if conversation.tools:
        body["tools"] = [_encode_tool(tool) for tool in conversation.tools]
        if choice.names is not None:
            types = {tool["name"]: tool["type"] for tool in body["tools"]}
            allowed = [{"type": types[name], "name": name} for name in choice.names]
            subset = {"type": "allowed_tools", "mode": choice.mode, "tools": allowed}
            body["tool_choice"] = allowed[0] if choice.is_named else subset
        elif choice != ToolChoice():
            body["tool_choice"] = choice.mode
        if not conversation.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    effort = conversation.reasoning.effort
    if effort is not None:
        # Without this field the response would contain no reasoning text: OpenAI
        # returns only summaries.
        body["reasoning"] = (
            {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}
        )
    match request.constraint:
        case JsonObject():
            body["text"] = {"format": {"type": "json_object"}}
        case JsonSchema(schema, strict, name):
            format = {
                "type": "json_schema",
                "name": name or "answer",
                "schema": to_raw(schema),
                "strict": strict,
            }
            body["text"] = {"format": format}
        case _:
            pass
    return body


def _encode_items(messages: Sequence[Message], warnings: list[str]) -> Iterator[dict[str, Any]]:
    # The type of an output has to match that of its call, which a tool result does not
    # contain.
    custom_calls: set[str] = set()
    for message in messages:
        content: list[dict[str, Any]] = []
        role = Role.USER if message.role is Role.TOOL else message.role
        for part in message.parts:
            if isinstance(part, Reasoning | ToolCall | ToolResult):
                if content:
                    yield {"type": "message", "role": role.value, "content": content}
                    content = []
                if isinstance(part, ToolCall) and part.custom:
                    custom_calls.add(part.id)
                yield from _encode_item(part, message.role, custom_calls)
            else:
                content.append(_encode_part(part, message.role))
        if content:
            yield {"type": "message", "role": role.value, "content": content}
    warn_of_names(messages, warnings)
    reasoning = [
        part for message in messages for part in message.parts if isinstance(part, Reasoning)
    ]
    if any(SealKind.OPENAI.read(part.seal) is None for part in reasoning):
        warnings.append(
            "messages: reasoning that the upstream's vendor has not encrypted was left out"
        )


def _encode_item(
    part: Reasoning | ToolCall | ToolResult, role: Role, custom_calls: set[str]
) -> Iterator[dict[str, Any]]:
    """Encode one item. Reasoning of another vendor yields none.

    custom_calls: ids of the preceding calls whose input is free text.
    """
    if isinstance(part, ToolResult):
        if role is Role.ASSISTANT:
            raise RequestError(
                "An assistant message cannot contain tool results.", param="messages"
            )
        kind = "custom_tool_call_output" if part.call_id in custom_calls else "function_call_output"
        content = state_failure(part)
        is_text = len(content) == 1 and isinstance(content[0], Text)
        output = [_encode_part(inner, Role.USER) for inner in content]
        yield {
            "type": kind,
            "call_id": part.call_id,
            "output": output[0]["text"] if is_text else output,
        }
    elif role is not Role.ASSISTANT:
        raise RequestError("Only an assistant message can contain tool calls.", param="messages")
    elif isinstance(part, Reasoning):
        if (encrypted := SealKind.OPENAI.read(part.seal)) is not None:
            summary = [{"type": "summary_text", "text": part.text}] if part.text else []
            yield {"type": "reasoning", "summary": summary, "encrypted_content": encrypted}
    elif part.custom:
        yield {
            "type": "custom_tool_call",
            "call_id": part.id,
            "name": part.name,
            "input": part.arguments,
        }
    else:
        yield {
            "type": "function_call",
            "call_id": part.id,
            "name": part.name,
            "arguments": part.arguments,
        }


def _encode_part(part: Part, role: Role) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "output_text" if role is Role.ASSISTANT else "input_text", "text": text}
        case Refusal(text):
            return {"type": "refusal", "refusal": text}
        case Image(source, detail):
            return {
                "type": "input_image",
                "image_url": build_media_url(source),
                "detail": detail or "auto",
            }
        case File(RemoteMedia(url)):
            return {"type": "input_file", "file_url": url}
        case File(source, filename):
            return {
                "type": "input_file",
                "filename": filename or "file",
                "file_data": build_media_url(source),
            }
        case Audio():
            raise Unsupported("The upstream does not support audio.", param="messages")
        case _:
            raise RequestError(
                "A message contains a part of an unsupported type.", param="messages"
            )


def _encode_tool(tool: Tool) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "type": "function" if isinstance(tool, FunctionTool) else "custom",
        "name": tool.name,
    }
    if tool.description is not None:
        encoded["description"] = tool.description
    if isinstance(tool, FunctionTool):
        encoded["parameters"] = None if tool.parameters is None else to_raw(tool.parameters)
        # Always sent: the default is true in the Responses API, but false in Chat
        # Completions.
        encoded["strict"] = bool(tool.strict)
    elif tool.definition is not None:
        encoded["format"] = {
            "type": "grammar",
            "syntax": tool.syntax or "lark",
            "definition": tool.definition,
        }
    return encoded


# Reading the events of a response.

_CALLS = ("function_call", "custom_tool_call")
_INCOMPLETE_REASONS = {
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


class _InputDetails(Struct, frozen=True, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(Struct, frozen=True, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, frozen=True, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Reason(Struct, frozen=True):
    reason: str | None = None


class _Response(Struct, frozen=True):
    error: WireError | None = None
    incomplete_details: _Reason | None = None
    usage: _Usage | None = None


class _Part(Struct, frozen=True):
    text: str | None = None
    refusal: str | None = None


class _Item(Struct, frozen=True):
    type: str
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    encrypted_content: str | None = None
    content: list[_Part] | None = None
    summary: list[_Part] | None = None


class _WireEvent(Struct, frozen=True):
    """Any event; `type` selects the fields that apply. The fields of an error are
    either here or in `error`.
    """

    type: str
    output_index: int | None = None
    summary_index: int | None = None
    item: _Item | None = None
    delta: str | None = None
    response: _Response | None = None
    error: WireError | str | None = None
    message: str | None = None
    code: str | int | None = None
    param: str | None = None


_decode = msgspec.json.Decoder(_WireEvent).decode
_DELTAS = {
    "response.output_text.delta": TextDelta,
    "response.refusal.delta": RefusalDelta,
    "response.reasoning.delta": ReasoningDelta,
    "response.reasoning_text.delta": ReasoningDelta,
    "response.reasoning_summary_text.delta": ReasoningDelta,
    "response.function_call_arguments.delta": ToolCallDelta,
    "response.custom_tool_call_input.delta": ToolCallDelta,
}


class ResponseEventReader:
    """Reads the events of one response. Implements `engine.StreamReader`."""

    def __init__(self) -> None:
        self.has_started = self.is_done = False
        self.warnings: tuple[str, ...] = ()
        self._usage = Usage(0, 0)
        self._open: _Item | None = None
        self._open_index: int | None = None
        self._has_deltas = False

    def read(self, data: bytes) -> list[Event]:  # noqa: PLR0911 - a table
        event = decode_data(_decode, data, "event")
        if (build := _DELTAS.get(event.type)) is not None:
            if self._open is None or event.output_index != self._open_index:
                raise EngineError("The upstream sent an event out of order.")
            self._has_deltas = self._has_deltas or bool(event.delta)
            return [build(0, event.delta)] if event.delta else []
        match event.type:
            case "error":
                error = event.error or WireError(event.message, None, event.param, event.code)
                raise build_event_error(error, has_started=self.has_started)
            case "response.created" | "response.in_progress" | "response.queued" if (
                not self.has_started
            ):
                # An upstream that rejects the request sends an error instead of this
                # event.
                self.has_started = True
                return [Started(0, warnings=self.warnings)]
            case "response.output_item.added":
                return self._start_item(event)
            case "response.reasoning_summary_part.added" if (
                event.summary_index and self._has_deltas
            ):
                # The parts of a summary are paragraphs, and no event contains the break
                # between them.
                return [ReasoningDelta(0, "\n\n")]
            case "response.output_item.done":
                return self._finish_item(event)
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._finish(event.type, event.response or _Response())
            case _:
                return []

    def read_whole(self, body: bytes) -> list[Event]:
        del body
        raise EngineError("The upstream answered without a stream.")

    def close(self) -> list[Event]:
        if not self.is_done:
            raise EngineError("The upstream's answer was cut off.")
        return [Finished(self._usage)]

    def _start_item(self, event: _WireEvent) -> list[Event]:
        item = event.item
        if item is None or self._open is not None or not self.has_started:
            raise EngineError("The upstream sent an event out of order.")
        self._open = item
        self._open_index = event.output_index
        self._has_deltas = False
        if item.type not in _CALLS:
            if item.type not in ("message", "reasoning"):
                # Items of the vendor's server-side tools, which this server never
                # requests.
                log.warning("an upstream's item of type %.40r was left out", item.type)
            return []
        if not item.call_id or not item.name:
            raise EngineError("The upstream started a tool call without a name or an id.")
        return [ToolCallStart(0, item.call_id, item.name, (), item.type == "custom_tool_call")]

    def _finish_item(self, event: _WireEvent) -> list[Event]:
        """Finish the open item. If the upstream sent no deltas, the content is taken
        from the item itself.
        """
        item = event.item
        if self._open is None or item is None or event.output_index != self._open_index:
            raise EngineError("The upstream sent an event out of order.")
        self._open = None
        events: list[Event] = []
        if not self._has_deltas:
            arguments = item.arguments or item.input
            if item.type in _CALLS and arguments:
                events.append(ToolCallDelta(0, arguments))
            elif item.type == "message":
                parts = item.content or []
                events += [TextDelta(0, part.text) for part in parts if part.text]
                events += [RefusalDelta(0, part.refusal) for part in parts if part.refusal]
            elif item.type == "reasoning":
                texts = [part.text for part in item.content or item.summary or () if part.text]
                events += [ReasoningDelta(0, "\n\n".join(texts))] if texts else []
        if item.type == "reasoning" and item.encrypted_content:
            events.append(ReasoningDelta(0, "", seal=SealKind.OPENAI + item.encrypted_content))
        return events

    def _finish(self, type: str, response: _Response) -> list[Event]:
        if type == "response.failed":
            raise build_event_error(response.error or WireError(), has_started=self.has_started)
        reason = FinishReason.STOP
        if type == "response.incomplete":
            detail = (
                None if response.incomplete_details is None else response.incomplete_details.reason
            )
            incomplete_reason = _INCOMPLETE_REASONS.get(detail or "")
            if incomplete_reason is None:
                raise EngineError(f"The upstream ended its answer with {detail!r:.80}.")
            reason = incomplete_reason
        # Only an answer that was cut off may end within an item.
        if not self.has_started or (self._open is not None and reason is FinishReason.STOP):
            raise EngineError("The upstream sent an event out of order.")
        usage = response.usage or _Usage()
        details = usage.input_tokens_details or _InputDetails()
        output = usage.output_tokens_details or _OutputDetails()
        self._usage = Usage(
            usage.input_tokens or 0,
            usage.output_tokens or 0,
            details.cached_tokens,
            output.reasoning_tokens,
            details.cache_write_tokens,
        )
        self.is_done = True
        return [ChoiceFinished(0, reason)]
