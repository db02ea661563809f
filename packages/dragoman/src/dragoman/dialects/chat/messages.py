"""Parses the messages of Chat Completions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

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
    Text,
    ToolCall,
    ToolResult,
    UploadedMedia,
)
from ...core.reasoning_details import ReasoningDetail, read_seal
from ..field_errors import check_one_of, invalid_value, missing_parameter, require_value
from ..media import read_base64, read_image_url, read_url
from ..request_body import read_json_object
from .wire import (
    ChatContentPart,
    ChatToolCall,
    ChatWireMessage,
)

ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_ROLE_NAMES = frozenset(ROLES)
_ROLE_OF = {role.value: role for role in Role}
_TEXT_ROLES = {name: _ROLE_OF[name] for name in ("developer", "system", "user")}
"""The roles whose messages have only a content."""
AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "ogg", "m4a", "aac", "webm", "pcm16")
TEXT_PARTS = ("text", "input_text", "output_text")
PARTS = (*TEXT_PARTS, "refusal", "thinking", "image_url", "input_audio", "audio_url", "file")


def read_messages(
    messages: Sequence[ChatWireMessage], warnings: list[str], *, keeps_seal: bool = False
) -> tuple[Message, ...]:
    """Parse messages. Raises RequestError with the path of the invalid field.

    keeps_seal: as in ReaderOptions.
    """
    reader = _MessageReader(warnings, keeps_seal)
    parsed: list[Message] = []
    for i, message in enumerate(messages):
        content = message.content
        role = _TEXT_ROLES.get(message.role)
        # Most messages are a text.
        if role is not None and content and isinstance(content, str):
            parsed.append(Message(role, (Text(content),), message.name))
        else:
            parsed.append(reader.read(message, f"messages[{i}]"))
    return tuple(parsed)


class _MessageReader:
    """Parses messages in order, and tracks calls to give each result its tool's name."""

    def __init__(self, warnings: list[str], keeps_seal: bool) -> None:
        self._warnings = warnings
        self._keeps_seal = keeps_seal
        self._names: dict[str, str] = {}
        self._open_legacy: dict[str, deque[str]] = {}

    def read(self, message: ChatWireMessage, path: str) -> Message:
        if message.role not in _ROLE_NAMES:
            check_one_of(message.role, ROLES, f"{path}.role")
        match message.role:
            case "assistant":
                return Message(Role.ASSISTANT, self._read_assistant(message, path), message.name)
            case "tool":
                return self._read_result(message, message.tool_call_id, path)
            case "function":
                if not message.name:
                    raise missing_parameter(f"{path}.name")
                # Legacy results have no call id, so they are matched to a function's
                # calls in order.
                if open_calls := self._open_legacy.get(message.name):
                    return self._read_result(message, open_calls.popleft(), path)
                return self._read_result(
                    message, f"call_legacy_{message.name}", path, answers_call=False
                )
            case role:
                return Message(_ROLE_OF[role], _read_required_content(message, path), message.name)

    def _read_assistant(self, message: ChatWireMessage, path: str) -> tuple[Part, ...]:
        parts: list[Part] = []
        # Answers have their reasoning in two fields, and clients send both back. Only
        # one is used, or it would double.
        if self._keeps_seal and any(
            detail.signature or detail.data for detail in message.reasoning_details or ()
        ):
            parts += map(_read_sealed_detail, message.reasoning_details or ())
        elif reasoning := (
            message.reasoning
            or message.reasoning_content
            or self._read_reasoning_details(message, path)
        ):
            parts.append(Reasoning(reasoning))
        content = message.content
        if isinstance(content, str):
            if content:
                parts.append(Text(content))
        elif content is not None:
            parts += _read_content(content, f"{path}.content")
        if message.refusal:
            parts.append(Refusal(message.refusal))
        if (legacy := message.function_call) is not None:
            # A legacy call has no id; a generated one links it to the next result of
            # that function.
            id = f"call_legacy_{len(self._names)}"
            self._names[id] = legacy.name
            self._open_legacy.setdefault(legacy.name, deque()).append(id)
            arguments = _read_arguments(legacy.arguments, f"{path}.function_call.arguments")
            parts.append(ToolCall(id, legacy.name, arguments))
        for i, call in enumerate(message.tool_calls or ()):
            part = _read_tool_call(call, f"{path}.tool_calls[{i}]")
            self._names[part.id] = part.name
            parts.append(part)
        return tuple(parts)

    def _read_reasoning_details(self, message: ChatWireMessage, path: str) -> str:
        """Return the text of `reasoning_details`, for messages without reasoning in
        another field.
        """
        texts: list[str] = []
        for i, detail in enumerate(message.reasoning_details or ()):
            text = detail.text if detail.type == "reasoning.text" else detail.summary
            if text:
                texts.append(text)
            elif detail.data is not None:
                self._warnings.append(
                    f"{path}.reasoning_details[{i}] is encrypted by another server; it was left out"
                )
        return "".join(texts)

    def _read_result(
        self, message: ChatWireMessage, call_id: str | None, path: str, *, answers_call: bool = True
    ) -> Message:
        if not call_id:
            raise missing_parameter(f"{path}.tool_call_id")
        # A refusal or reasoning in a tool's message is the tool's text, not the
        # model's.
        content = tuple(
            Text(part.text) if isinstance(part, Refusal | Reasoning) else part
            for part in _read_required_content(message, path)
            if isinstance(part, Text | Image | Audio | File | Refusal | Reasoning)
        )
        result = ToolResult(call_id, content, answers_call=answers_call)
        return Message(Role.TOOL, (result,), message.name or self._names.get(call_id))


def _read_sealed_detail(detail: ReasoningDetail) -> Reasoning:
    return Reasoning(detail.text or detail.summary or "", seal=read_seal(detail))


def _read_required_content(message: ChatWireMessage, path: str) -> tuple[Part, ...]:
    if message.content is None or message.content == []:
        raise RequestError(
            f"Invalid type for '{path}.content': expected a string or an array with at least one "
            f"part.",
            param=f"{path}.content",
            code="invalid_type",
        )
    if isinstance(message.content, str):
        return (Text(message.content),) if message.content else ()
    return tuple(_read_content(message.content, f"{path}.content"))


def _read_content(content: list[ChatContentPart | str], path: str) -> Iterator[Part]:
    for i, part in enumerate(content):
        if isinstance(part, str):
            yield Text(part)
        elif part.type in TEXT_PARTS:
            yield Text(require_value(part.text, f"{path}[{i}].text"))
        else:
            yield _read_part(part, f"{path}[{i}]")


def _read_part(part: ChatContentPart, part_path: str) -> Part:  # noqa: PLR0911 - a table
    """Parse a part that is not text."""
    if part.type in ("video", "video_url"):
        raise Unsupported(f"'{part_path}': video is not supported here.", param=f"{part_path}.type")
    path = f"{part_path}.{part.type}"
    match check_one_of(part.type, PARTS, f"{part_path}.type"):
        case "refusal":
            return Refusal(require_value(part.refusal, path))
        case "thinking":
            return Reasoning(require_value(part.thinking, path))
        case "image_url":
            image = require_value(part.image_url, path)
            if isinstance(image, str):
                return Image(read_image_url(image, path))
            if image.detail is not None:
                check_one_of(image.detail, ("auto", "low", "high", "original"), f"{path}.detail")
            return Image(read_image_url(image.url, f"{path}.url"), image.detail)
        case "audio_url":
            audio = require_value(part.audio_url, path)
            if isinstance(audio, str):
                return Audio(read_url(audio, path))
            return Audio(read_url(audio.url, f"{path}.url"))
        case "input_audio":
            input_audio = require_value(part.input_audio, path)
            format = check_one_of(input_audio.format, AUDIO_FORMATS, f"{path}.format")
            return Audio(read_base64(input_audio.data, f"audio/{format}", f"{path}.data"), format)
        case _:
            file = require_value(part.file, path)
            if file.file_id:
                return File(UploadedMedia(file.file_id), file.filename)
            return File(
                read_base64(
                    require_value(file.file_data, f"{path}.file_data"), None, f"{path}.file_data"
                ),
                file.filename,
            )


def _read_tool_call(call: ChatToolCall, path: str) -> ToolCall:
    if call.type is not None:
        check_one_of(call.type, ("function", "custom"), f"{path}.type")
    if call.custom is not None and call.type != "function":
        return ToolCall(call.id, call.custom.name, call.custom.input, custom=True)
    if call.function is None:
        raise missing_parameter(f"{path}.{call.type or 'function'}")
    return ToolCall(
        call.id,
        call.function.name,
        _read_arguments(call.function.arguments, f"{path}.function.arguments"),
    )


def _read_arguments(raw: Raw, param: str) -> str:
    """Return a call's arguments as text. Invalid JSON in a string is preserved: the
    model wrote it, not the client.
    """
    text = bytes(raw).strip()
    if text.startswith(b'"'):
        return msgspec.json.decode(text, type=str)
    if text in (b"", b"null"):
        return ""
    try:
        return read_json_object(raw, param) or ""
    except RequestError:
        raise invalid_value(param, "expected a string") from None
