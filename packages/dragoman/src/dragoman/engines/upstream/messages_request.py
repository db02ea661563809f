"""Encodes requests for Anthropic's Messages API. Pure."""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...core.errors import Unsupported
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
    build_misplaced_error,
)
from ...core.request import Conversation, GenerateRequest, JsonSchema
from .chat_messages import build_media_url
from .server_kind import ServerKind
from .shared_encoding import (
    encode_arguments,
    merge_sampling,
    require_conversation,
    resolve_max_tokens,
    select_tools,
    to_raw,
    warn_of_history,
)
from .upstream_request import UpstreamDefaults, UpstreamRequest, encode_body

log = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS = 8192
"""Limit for requests without one, since Messages requires it; no model since Claude 3.5
has a lower maximum.
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
    warn_of_history(
        messages,
        warnings,
        is_continued=bool(turns) and turns[-1]["role"] == "assistant" and not continues,
        keeps_reasoning=lambda part: _encode_reasoning(part) is not None,
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
            # Anthropic rejects text of only white space; other models begin their calls
            # with two line breaks.
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
            return {
                "type": "tool_use",
                "id": _encode_id(id),
                "name": name,
                "input": encode_arguments(arguments),
            }
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
        case ToolCall() | ToolResult():
            raise build_misplaced_error(part)
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
