"""Canonical messages as Chat Completions has them: what a reader of that dialect makes the same messages of again."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import RequestError, Unsupported
from ...core.message import (
    Audio,
    File,
    Image,
    Inline,
    Message,
    Part,
    Reasoning,
    Refusal,
    Remote,
    Role,
    Source,
    Stored,
    Text,
    ToolCall,
    ToolResult,
)
from .kinds import Kind


def wire_messages(messages: Sequence[Message], kind: Kind) -> list[dict[str, Any]]:
    """Raises Unsupported for media that only a file id stands for."""
    return [wire for message in messages for wire in _message(message, kind)]


def _message(message: Message, kind: Kind) -> Iterator[dict[str, Any]]:
    """One, and one more for each tool result in it."""
    if message.role is Role.ASSISTANT:
        yield _assistant(message, kind)
        return
    role = Role.SYSTEM if message.role is Role.DEVELOPER and not kind.developer else message.role
    pending: list[Part] = []
    for part in message.parts:
        if not isinstance(part, ToolResult):
            pending.append(part)
            continue
        if pending:
            yield _plain(role, pending, message.name)
            pending = []
        yield _result(part, message)
    if pending or not message.parts:
        yield _plain(role, pending, message.name)


def _plain(role: Role, parts: Sequence[Part], name: str | None) -> dict[str, Any]:
    # What stands beside tool results in a message of theirs is the user's word.
    said = Role.USER if role is Role.TOOL else role
    return {"role": said.value, "content": _content(parts), **_name(name)}


def _name(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"name": name}


def _result(result: ToolResult, message: Message) -> dict[str, Any]:
    """Chat knows no failed results, so that the text has to say it."""
    content: Sequence[Part] = result.content
    if result.is_error:
        first, *rest = result.content or (Text(""),)
        if not isinstance(first, Text):
            content = [Text("Error:"), first, *rest]
        elif not first.text.lower().startswith("error"):
            content = [Text(f"Error: {first.text}"), *rest]
    name = message.name if message.role is Role.TOOL else None
    return {"role": "tool", "tool_call_id": result.call_id, "content": _content(content), **_name(name)}


def _assistant(message: Message, kind: Kind) -> dict[str, Any]:
    thought = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
    calls = [_call(part, kind) for part in message.parts if isinstance(part, ToolCall)]
    said = [part for part in message.parts if not isinstance(part, (Reasoning, ToolCall))]
    wire: dict[str, Any] = {"role": "assistant", "content": _content(said) if said or not calls else None}
    if thought:
        wire |= dict.fromkeys(kind.thoughts, thought)
    if calls:
        wire["tool_calls"] = calls
    return wire | _name(message.name)


def _call(call: ToolCall, kind: Kind) -> dict[str, Any]:
    if not call.custom:
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
    if not kind.openai_tools:
        raise Unsupported("The upstream does not support free-form tools.", param="messages")
    return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """A string where that says the same: many servers know nothing else for most roles."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:  # noqa: PLR0911 - a table
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Refusal(text):
            return {"type": "refusal", "refusal": text}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text}
        case Image(source, detail):
            shown = {} if detail is None else {"detail": detail}
            return {"type": "image_url", "image_url": {"url": _url(source), **shown}}
        case Audio(Inline(data), format):
            said = {"data": base64.b64encode(data).decode(), "format": format or "wav"}
            return {"type": "input_audio", "input_audio": said}
        case Audio(source):
            return {"type": "audio_url", "audio_url": {"url": _url(source)}}
        case File(source, filename):
            named = {} if filename is None else {"filename": filename}
            return {"type": "file", "file": {"file_data": _url(source), **named}}
        case ToolCall():
            raise RequestError("Only an assistant message can contain tool calls.", param="messages")
        case ToolResult():
            raise RequestError("An assistant message cannot contain tool results.", param="messages")


def _url(source: Source) -> str:
    match source:
        case Inline(data, media_type):
            return f"data:{media_type or 'application/octet-stream'};base64,{base64.b64encode(data).decode()}"
        case Remote(url):
            return url
        case Stored():
            raise Unsupported("Files uploaded to this server are not available to the upstream.", param="messages")
