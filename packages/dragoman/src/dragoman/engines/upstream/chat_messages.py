"""Encodes messages as Chat Completions messages; parsing them gives the same messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import Unsupported
from ...core.message import (
    Audio,
    File,
    Image,
    InlineMedia,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Refusal,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolResult,
    UploadedMedia,
    build_misplaced_error,
)
from ...core.reasoning_details import build_reasoning_detail
from .server_kind import ServerKind


def encode_messages(messages: Sequence[Message], kind: ServerKind) -> list[dict[str, Any]]:
    """Encode messages as Chat Completions messages; parsing them gives the same
    messages.

    Raises Unsupported for media with only a file id.
    """
    encoded: list[dict[str, Any]] = []
    for message in messages:
        if message.role is Role.ASSISTANT:
            encoded.append(_encode_assistant(message, kind))
            continue
        role = (
            Role.SYSTEM
            if message.role is Role.DEVELOPER and not kind.has_developer_role
            else message.role
        )
        # Each tool result becomes a message of its own, and so do the parts between two
        # results.
        pending: list[Part] = []
        for part in message.parts:
            if not isinstance(part, ToolResult):
                pending.append(part)
                continue
            if pending:
                encoded.append(_encode_plain(role, pending, message.name))
                pending = []
            name_field = _encode_name(message.name if message.role is Role.TOOL else None)
            content = _encode_content(state_failure(part))
            encoded.append(
                {"role": "tool", "tool_call_id": part.call_id, "content": content, **name_field}
            )
        if pending or not message.parts:
            encoded.append(_encode_plain(role, pending, message.name))
    return encoded


def find_omissions(messages: Sequence[Message], kind: ServerKind) -> Iterator[str]:
    """Yield a warning for each kind of content that `encode_messages` leaves out."""
    if not kind.reasoning_fields and any(
        isinstance(part, Reasoning)
        for message in messages
        if message.role is Role.ASSISTANT
        for part in message.parts
    ):
        yield (
            "messages: past reasoning was left out: the upstream's Chat Completions has no field "
            "for it"
        )


def _encode_assistant(message: Message, kind: ServerKind) -> dict[str, Any]:
    reasoning = "".join(part.text for part in message.parts if isinstance(part, Reasoning))
    calls = [part for part in message.parts if isinstance(part, ToolCall)]
    content_parts = [part for part in message.parts if not isinstance(part, (Reasoning, ToolCall))]
    encoded: dict[str, Any] = {
        "role": "assistant",
        "content": _encode_content(content_parts) if content_parts or not calls else None,
    }
    if reasoning:
        encoded |= dict.fromkeys(kind.reasoning_fields, reasoning)
    sealed = [part for part in message.parts if isinstance(part, Reasoning) and part.seal]
    if sealed and kind.has_reasoning_details:
        encoded["reasoning_details"] = [
            build_reasoning_detail(part.text, part.seal, i) for i, part in enumerate(sealed)
        ]
    if any(call.custom for call in calls) and not kind.has_openai_tools:
        raise Unsupported("The upstream does not support free-form tools.", param="messages")
    if calls:
        encoded["tool_calls"] = [
            {
                "id": call.id,
                "type": "custom",
                "custom": {"name": call.name, "input": call.arguments},
            }
            if call.custom
            else {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return encoded | _encode_name(message.name)


def _encode_plain(role: Role, parts: Sequence[Part], name: str | None) -> dict[str, Any]:
    # Other parts of a tool message are user content.
    wire_role = Role.USER if role is Role.TOOL else role
    return {"role": wire_role.value, "content": _encode_content(parts), **_encode_name(name)}


def _encode_name(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"name": name}


def state_failure(result: ToolResult) -> Sequence[Part]:
    """Build the content of a tool result for an API without an error flag: its text
    states the failure.
    """
    if not result.is_error:
        return result.content
    first, *rest = result.content or (Text(""),)
    if not isinstance(first, Text):
        return [Text("Error:"), first, *rest]
    return (
        result.content
        if first.text.lower().startswith("error")
        else [Text(f"Error: {first.text}"), *rest]
    )


def _encode_content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Encode content, as a string if possible: many servers accept only strings for
    most roles.
    """
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].text:
        return parts[0].text
    return [_encode_part(part) for part in parts]


def _encode_part(part: Part) -> dict[str, Any]:  # noqa: PLR0911 - a table
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Refusal(text):
            return {"type": "refusal", "refusal": text}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text}
        case Image(source, detail):
            detail_field = {} if detail is None else {"detail": detail}
            return {
                "type": "image_url",
                "image_url": {"url": build_media_url(source), **detail_field},
            }
        case Audio(InlineMedia(data), format):
            audio = {"data": base64.b64encode(data).decode(), "format": format or "wav"}
            return {"type": "input_audio", "input_audio": audio}
        case Audio(source):
            return {"type": "audio_url", "audio_url": {"url": build_media_url(source)}}
        case File(source, filename):
            filename_field = {} if filename is None else {"filename": filename}
            return {
                "type": "file",
                "file": {"file_data": build_media_url(source), **filename_field},
            }
        case ToolCall() | ToolResult():
            raise build_misplaced_error(part)


def build_media_url(source: MediaSource) -> str:
    """Build the URL of media; a data URL for inline media. Raises Unsupported for a
    file id.
    """
    match source:
        case InlineMedia(data, media_type):
            encoded = base64.b64encode(data).decode()
            return f"data:{media_type or 'application/octet-stream'};base64,{encoded}"
        case RemoteMedia(url):
            return url
        case UploadedMedia():
            raise Unsupported(
                "Files uploaded to this server are not available to the upstream.", param="messages"
            )
