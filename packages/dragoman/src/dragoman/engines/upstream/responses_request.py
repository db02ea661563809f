"""Encodes requests for OpenAI's Responses API. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import RequestError, Unsupported
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
    build_misplaced_error,
)
from ...core.request import AnyJsonObject, Conversation, GenerateRequest, JsonSchema
from .chat_messages import build_media_url, state_failure
from .server_kind import ServerKind
from .shared_encoding import (
    merge_sampling,
    require_conversation,
    resolve_max_tokens,
    to_raw,
    warn_of_names,
)
from .upstream_request import UpstreamDefaults, UpstreamRequest, encode_body

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
        case AnyJsonObject():
            body["text"] = {"format": {"type": "json_object"}}
        case JsonSchema(schema, strict, name, description):
            format: dict[str, Any] = {
                "type": "json_schema",
                "name": name or "answer",
                "schema": to_raw(schema),
                "strict": strict,
            }
            if description is not None:
                format["description"] = description
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
            raise build_misplaced_error(part)
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
        raise build_misplaced_error(part)
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
