"""Chat's messages to the core's: content parts, media, replayed reasoning, tool calls and their results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from ...core.errors import RequestError, Unsupported
from ...core.message import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Stored,
    Text,
    ToolCall,
    ToolResult,
)
from ..body import invalid, json_text, missing, one_of
from ..media import read_base64, read_image_url, read_url
from .wire import CalledFunction, CalledTool, ContentPart, FileData, ImageUrl, InputAudio, WireMessage

T = TypeVar("T")

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "ogg", "m4a", "aac", "webm", "pcm16")
TEXT_PARTS = ("text", "input_text", "output_text")
PARTS = (*TEXT_PARTS, "refusal", "thinking", "image_url", "input_audio", "audio_url", "file")


def read_messages(messages: Sequence[WireMessage]) -> tuple[Message, ...]:
    """Raises RequestError with the path of the offending field."""
    history = _History()
    return tuple(history.read(message, f"messages[{i}]") for i, message in enumerate(messages))


class _History:
    """What earlier messages said of calls, so that a result can be given its tool's name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open_legacy: dict[str, deque[str]] = {}

    def read(self, message: WireMessage, at: str) -> Message:
        match one_of(message.role, ROLES, f"{at}.role"):
            case "assistant":
                return Message(Role.ASSISTANT, tuple(self._assistant(message, at)), message.name)
            case "tool":
                return self._result(message, message.tool_call_id, at)
            case "function":
                return self._function_result(message, at)
            case role:
                return Message(Role(role), _required_content(message, at), message.name)

    def _assistant(self, message: WireMessage, at: str) -> Iterator[Part]:
        thought = message.reasoning or message.reasoning_content
        if thought:
            yield Reasoning(thought)
        yield from _content(message.content, f"{at}.content")
        if message.refusal:
            yield Refusal(message.refusal)
        if message.function_call is not None:
            yield self._legacy_call(message.function_call, at)
        for i, call in enumerate(message.tool_calls or ()):
            part = _tool_call(call, f"{at}.tool_calls[{i}]")
            self._names[part.id] = part.name
            yield part

    def _legacy_call(self, call: CalledFunction, at: str) -> ToolCall:
        """Legacy calls have no ids: a made-up one ties the next result of that function to it."""
        id = f"call_legacy_{len(self._names)}"
        self._names[id] = call.name
        self._open_legacy.setdefault(call.name, deque()).append(id)
        return ToolCall(id, call.name, _arguments(call.arguments, f"{at}.function_call.arguments"))

    def _function_result(self, message: WireMessage, at: str) -> Message:
        if not message.name:
            raise missing(f"{at}.name")
        open_calls = self._open_legacy.get(message.name)
        id = open_calls.popleft() if open_calls else f"call_legacy_{message.name}"
        return self._result(message, id, at)

    def _result(self, message: WireMessage, call_id: str | None, at: str) -> Message:
        if not call_id:
            raise missing(f"{at}.tool_call_id")
        content = tuple(
            part if isinstance(part, Text | Image | Audio | File) else Text(_said(part))
            for part in _required_content(message, at)
        )
        return Message(Role.TOOL, (ToolResult(call_id, content),), message.name or self._names.get(call_id))


def _said(part: Part) -> str:
    """A tool's refusal or thought is, to the model, what the tool said."""
    return part.text if isinstance(part, Refusal | Reasoning) else ""


def _required_content(message: WireMessage, at: str) -> tuple[Part, ...]:
    if message.content is None or message.content == []:
        raise RequestError(
            f"Invalid type for '{at}.content': expected a string or an array with at least one part.",
            param=f"{at}.content",
            code="invalid_type",
        )
    return tuple(_content(message.content, f"{at}.content"))


def _content(content: str | list[ContentPart | str] | None, at: str) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, part in enumerate(content or ()):
        yield Text(part) if isinstance(part, str) else _part(part, f"{at}[{i}]")


def _part(part: ContentPart, at: str) -> Part:
    if part.type in TEXT_PARTS:
        return Text(_given(part.text, f"{at}.text"))
    if part.type in ("video", "video_url"):
        raise Unsupported(f"'{at}': video is not supported here.", param=f"{at}.type")
    field = f"{at}.{part.type}"
    match one_of(part.type, PARTS, f"{at}.type"):
        case "refusal":
            return Refusal(_given(part.refusal, field))
        case "thinking":
            return Reasoning(_given(part.thinking, field))
        case _:
            return _media(part, field)


def _media(part: ContentPart, at: str) -> Part:
    match part.type:
        case "image_url":
            return _image(_given(part.image_url, at), at)
        case "audio_url":
            audio = _given(part.audio_url, at)
            return Audio(read_url(audio if isinstance(audio, str) else audio.url, at))
        case "input_audio":
            return _audio(_given(part.input_audio, at), at)
        case _:
            return _file(_given(part.file, at), at)


def _given(value: T | None, param: str) -> T:
    if value is None:
        raise missing(param)
    return value


def _image(image: ImageUrl | str, at: str) -> Image:
    if isinstance(image, str):
        return Image(read_image_url(image, at))
    if image.detail is not None:
        one_of(image.detail, ("auto", "low", "high", "original"), f"{at}.detail")
    return Image(read_image_url(image.url, f"{at}.url"), image.detail)


def _audio(audio: InputAudio, at: str) -> Audio:
    format = one_of(audio.format, AUDIO_FORMATS, f"{at}.format")
    return Audio(read_base64(audio.data, f"audio/{format}", f"{at}.data"), format)


def _file(file: FileData, at: str) -> File:
    if file.file_id:
        return File(Stored(file.file_id), file.filename)
    return File(read_base64(_given(file.file_data, f"{at}.file_data"), None, f"{at}.file_data"), file.filename)


def _tool_call(call: CalledTool, at: str) -> ToolCall:
    if call.type is not None:
        one_of(call.type, ("function", "custom"), f"{at}.type")
    if call.custom is not None and call.type != "function":
        return ToolCall(call.id, call.custom.name, call.custom.input, custom=True)
    if call.function is None:
        raise missing(f"{at}.{call.type or 'function'}")
    return ToolCall(call.id, call.function.name, _arguments(call.function.arguments, f"{at}.function.arguments"))


def _arguments(raw: Raw, param: str) -> str:
    """A model's bad JSON is replayed as it was: it is never the client's fault."""
    text = bytes(raw).strip()
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    if text in (b"", b"null"):
        return ""
    try:
        return json_text(raw, param) or ""
    except RequestError:
        raise invalid(param, "expected a string") from None
