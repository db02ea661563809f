"""Encodes a canonical request as a request for Anthropic's Messages. Pure.

Sources: the parameter types of anthropic-python 2.11 and the pages "Messages", "Extended thinking" and "Prompt caching"
of Anthropic's documentation.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...core.errors import RequestError, Unsupported
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
from ...core.request import Conversation, GenerateRequest, JsonSchema, ReasoningOptions
from .encode import (
    UpstreamDefaults,
    UpstreamRequest,
    encode_body,
    merge_sampling,
    require_conversation,
    resolve_max_tokens,
    select_tools,
    to_raw,
    warn_of_names,
)
from .messages import build_media_url
from .server_kinds import ServerKind

DEFAULT_MAX_TOKENS = 8192
"""Messages requires a limit; this one is below that of every model since Claude 3.5."""
INVALID_JSON_KEY = "INVALID_JSON"
"""Anthropic's convention for arguments that are no JSON object: they are sent as the value of this key."""

_EFFORTS = {"minimal": "low"}
"""Efforts of OpenAI that have another name."""
_INVALID_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_CACHE_MARK = {"type": "ephemeral"}
_ANSWERED_ROLES = (Role.USER, Role.TOOL)


def encode_messages_request(
    request: GenerateRequest, kind: ServerKind, model: str, defaults: UpstreamDefaults
) -> UpstreamRequest:
    """Encode a request. Raises Unsupported for what Messages lacks, RequestError for what it cannot represent."""
    conversation = require_conversation(request, kind)
    warnings: list[str] = []
    sampling = merge_sampling(request.sampling, defaults.sampling)
    body = _encode_prompt(request, conversation, model, warnings)
    body |= {
        "max_tokens": _require_max_tokens(request, conversation.reasoning, defaults, warnings),
        "stream": True,
        **{name: getattr(sampling, name) for name in sampling.list_set_fields() if name in kind.parameters},
    }
    if body.get("top_k") == 0:
        del body["top_k"]
    if request.limits.stop:
        body["stop_sequences"] = request.limits.stop
    return UpstreamRequest("/messages", encode_body(body), warnings=tuple(warnings))


def encode_count_request(request: GenerateRequest, kind: ServerKind, model: str) -> UpstreamRequest:
    """Encode a request for the number of tokens of a prompt. Raises as `encode_messages_request`."""
    body = _encode_prompt(request, require_conversation(request, kind), model, [])
    return UpstreamRequest("/messages/count_tokens", encode_body(body))


def _encode_prompt(
    request: GenerateRequest, conversation: Conversation, model: str, warnings: list[str]
) -> dict[str, Any]:
    """Encode the fields that define the prompt."""
    continues = conversation.template.continue_final_message
    system, messages = _encode_messages(conversation.messages, warnings, continues=continues)
    if conversation.tools or any(message["role"] == "assistant" for message in messages):
        # A longer conversation will be sent again: caching is automatic, as it is with other engines.
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
        output_config["format"] = {"type": "json_schema", "schema": to_raw(request.constraint.schema)}
    thinking, effort = _encode_thinking(conversation, warnings)
    if thinking is not None:
        body["thinking"] = thinking
    if effort is not None:
        output_config["effort"] = effort
    return body | ({"output_config": output_config} if output_config else {})


def _require_max_tokens(
    request: GenerateRequest, reasoning: ReasoningOptions, defaults: UpstreamDefaults, warnings: list[str]
) -> int:
    if (limit := resolve_max_tokens(request, defaults)) is not None:
        return limit
    # The budget of thinking is a part of the limit.
    limit = DEFAULT_MAX_TOKENS + (reasoning.budget or 0)
    warnings.append(f"max_tokens: the upstream requires a limit; it is {limit}")
    return limit


def _encode_thinking(conversation: Conversation, warnings: list[str]) -> tuple[dict[str, Any] | None, str | None]:
    """Encode `thinking` and the effort. A model's default applies to what the request leaves open."""
    options = conversation.reasoning
    effort = None if options.effort is None else _EFFORTS.get(options.effort, options.effort)
    if options.enabled is False or effort == "none" or options.budget == 0:
        return {"type": "disabled"}, None if effort == "none" else effort
    if options.budget is not None:
        if _continues_unsealed_turn(conversation.messages):
            # Messages rejects such a conversation: with a budget, the turn that called the tools has to begin with its
            # thinking.
            warnings.append(
                "thinking_token_budget is ignored: the turn that is being continued has no thinking with a signature"
            )
            return None, effort
        return {"type": "enabled", "budget_tokens": options.budget, "display": "summarized"}, effort
    if options.enabled or effort is not None:
        # Without `display`, some models return no text of their thinking.
        return {"type": "adaptive", "display": "summarized"}, effort
    return None, None


def _continues_unsealed_turn(messages: Sequence[Message]) -> bool:
    """Whether the answer continues a turn that called tools and does not begin with reasoning that has a seal."""
    if not messages or messages[-1].role is not Role.TOOL:
        return False
    turn: list[Part] = []
    for message in reversed(messages):
        if message.role is Role.ASSISTANT:
            turn[:0] = message.parts
        elif message.role is not Role.TOOL:
            break
    return not (turn and isinstance(turn[0], Reasoning) and _encode_reasoning(turn[0]) is not None)


def _encode_messages(
    messages: Sequence[Message], warnings: list[str], *, continues: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Encode the system prompt's blocks, and the turns. Adjacent messages of one role are one turn.

    continues: the client wants the last message to be continued.
    """
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        blocks = [block for part in message.parts if (block := _encode_part(part, message.role)) is not None]
        # Later system messages remain turns: Claude Code ends its conversations with one.
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
        warnings.append("messages: the upstream continues the last message, since that is the assistant's")
    if any(isinstance(part, Reasoning) and _encode_reasoning(part) is None for m in messages for part in m.parts):
        warnings.append("messages: reasoning without a signature of the upstream's vendor was left out")
    return system, turns


def _mark_for_cache(blocks: list[dict[str, Any]]) -> None:
    """Mark the end of a prefix that is to be cached."""
    if blocks:
        blocks[-1] = {**blocks[-1], "cache_control": _CACHE_MARK}


def _encode_part(part: Part, role: Role) -> dict[str, Any] | None:
    """Encode a part as a block; None for one that Messages cannot contain, such as an empty text."""
    match part:
        case Text(text) | Refusal(text):
            return {"type": "text", "text": text} if text else None
        case Reasoning():
            return _encode_reasoning(part)
        case Image(source):
            return {"type": "image", "source": _encode_source(source, "image/png")}
        case File():
            return _encode_document(part)
        case ToolCall(custom=True):
            raise Unsupported("The upstream does not support free-form tools.", param="messages")
        case ToolCall(id, name, arguments) if role is Role.ASSISTANT:
            return {"type": "tool_use", "id": _encode_id(id), "name": name, "input": _encode_input(arguments)}
        case ToolResult(id, content, is_error) if role is not Role.ASSISTANT:
            blocks = [block for inner in content if (block := _encode_part(inner, role)) is not None]
            error_field = {"is_error": True} if is_error else {}
            return {"type": "tool_result", "tool_use_id": _encode_id(id), "content": blocks, **error_field}
        case ToolCall():
            raise RequestError("Only an assistant message can contain tool calls.", param="messages")
        case ToolResult():
            raise RequestError("An assistant message cannot contain tool results.", param="messages")
        case Audio():
            raise Unsupported("The upstream does not support audio.", param="messages")


def _encode_reasoning(part: Reasoning) -> dict[str, Any] | None:
    """Encode thinking, as the upstream made it. Anthropic rejects all other, also that of another vendor."""
    if (signature := SealKind.ANTHROPIC.read(part.seal)) is not None:
        return {"type": "thinking", "thinking": part.text, "signature": signature}
    data = SealKind.ANTHROPIC_REDACTED.read(part.seal)
    return None if data is None else {"type": "redacted_thinking", "data": data}


def _encode_id(id: str) -> str:
    """Encode a call's id. Anthropic allows letters, digits, `_` and `-` only."""
    return _INVALID_ID_CHARACTER.sub("_", id)


def _encode_input(arguments: str) -> object:
    try:
        decoded = msgspec.json.decode(arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        decoded = None
    return to_raw(arguments or "{}") if isinstance(decoded, dict) else {INVALID_JSON_KEY: arguments}


def _encode_source(source: MediaSource, default_type: str) -> dict[str, Any]:
    match source:
        case InlineMedia(data, media_type):
            encoded = base64.b64encode(data).decode()
            return {"type": "base64", "media_type": media_type or default_type, "data": encoded}
        case _:
            return {"type": "url", "url": build_media_url(source)}


def _encode_document(file: File) -> dict[str, Any]:
    """Encode a document: a PDF, or a text in UTF-8."""
    source = _encode_source(file.source, "application/pdf")
    if isinstance(file.source, InlineMedia) and source["media_type"] != "application/pdf":
        try:
            source = {"type": "text", "media_type": "text/plain", "data": file.source.data.decode()}
        except UnicodeDecodeError:
            raise Unsupported(
                f"The upstream takes PDF and text, not {source['media_type']!r:.80}.", param="messages"
            ) from None
    title_field = {} if file.filename is None else {"title": file.filename}
    return {"type": "document", "source": source, **title_field}


def _encode_tool(tool: Tool) -> dict[str, Any]:
    assert isinstance(tool, FunctionTool)
    return dict(_encode_tool_fields(tool))


def _encode_tool_fields(tool: FunctionTool) -> Iterator[tuple[str, Any]]:
    yield "name", tool.name
    if tool.description is not None:
        yield "description", tool.description
    schema = msgspec.json.decode(tool.parameters or "{}")
    # `input_schema` has to be that of an object.
    yield "input_schema", to_raw(tool.parameters or "") if schema.get("type") else {**schema, "type": "object"}
    if tool.strict is not None:
        yield "strict", tool.strict
