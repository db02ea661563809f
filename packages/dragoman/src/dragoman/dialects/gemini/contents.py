"""Parses the contents of a conversation: parts of users, models and functions."""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Sequence

from ...core.errors import Unsupported
from ...core.image_header import check_image
from ...core.message import (
    Audio,
    File,
    Image,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from ..field_errors import abbreviate, check_one_of, invalid_value, missing_parameter
from ..media import read_base64, read_url
from ..request_body import read_json_object
from ..sealing import Purpose, SealingKey, VerificationMode, unpack_reasoning
from .wire import GeminiBlob, GeminiContent, GeminiFileData, GeminiPart

ROLES = ("user", "model", "function", "tool")
PLACEHOLDER_SIGNATURES = (
    "skip_thought_signature_validator",
    "context_engineering_is_the_way_to_go",
)
"""Signatures that Google documents for histories of other models: they say nothing."""
_TO_STANDARD_ALPHABET = str.maketrans("-_", "+/")


def read_system(content: GeminiContent | None) -> tuple[Message, ...]:
    """Parse the system instruction. Raises RequestError: it has other parts than text."""
    texts: list[Part] = []
    for i, part in enumerate((content and content.parts) or ()):
        if part.text is None:
            raise invalid_value(f"systemInstruction.parts[{i}]", "expected text")
        texts.append(Text(part.text))
    return (Message(Role.SYSTEM, tuple(texts)),) if texts else ()


def read_contents(
    contents: Sequence[GeminiContent] | None, key: SealingKey | None, warnings: list[str]
) -> tuple[Message, ...]:
    """Parse contents. Raises RequestError with the path of the invalid field."""
    if not contents:
        raise missing_parameter("contents")
    reader = _ContentReader(key, warnings)
    for i, content in enumerate(contents):
        reader.read(content, f"contents[{i}]")
    if not reader.messages:
        raise invalid_value("contents", "it has no parts")
    return tuple(reader.messages)


class _ContentReader:
    """Parses contents in order, and matches each response of a function to its call.

    Clients need not send ids of calls: a response without one answers the first open
    call of its function.
    """

    def __init__(self, key: SealingKey | None, warnings: list[str]) -> None:
        self.messages: list[Message] = []
        self._key = key
        self._is_strict = key is not None and key.check is VerificationMode.STRICT
        self._warnings = warnings
        self._open_ids: dict[str, deque[str]] = {}
        self._n_calls = 0

    def read(self, content: GeminiContent, path: str) -> None:
        role = check_one_of(content.role or "user", ROLES, f"{path}.role")
        parts = [
            (part, f"{path}.parts[{i}]")
            for i, part in enumerate(content.parts or ())
            if part != GeminiPart()
        ]
        if role == "model":
            self._read_model_turn(parts)
            return
        user_parts: list[Part] = []
        for part, part_path in parts:
            if part.functionResponse is not None:
                self.messages.append(self._read_result(part, part_path))
            else:
                user_parts.append(_read_user_part(part, part_path))
        if user_parts:
            self.messages.append(Message(Role.USER, tuple(user_parts)))

    def _read_model_turn(self, parts: Sequence[tuple[GeminiPart, str]]) -> None:
        turn: list[Part] = []
        # A client that keeps the chunks of a stream sends one turn as many contents.
        if self.messages and self.messages[-1].role is Role.ASSISTANT:
            turn += self.messages.pop().parts
        for part, path in parts:
            self._read_signature(part, path, turn)
            if part.functionCall is not None:
                turn.append(self._read_call(part, path))
            elif part.text is not None:
                self._append_text(turn, part)
            elif part.inlineData is not None or part.fileData is not None:
                raise Unsupported(
                    f"'{path}': media of a model's turn is not supported here.", param=path
                )
            else:
                turn += _read_executed_code(part, path)
        if turn:
            self.messages.append(Message(Role.ASSISTANT, tuple(turn)))

    def _append_text(self, turn: list[Part], part: GeminiPart) -> None:
        text = part.text or ""
        last = turn[-1] if turn else None
        if part.thought:
            if isinstance(last, Reasoning) and not last.seal and not part.thoughtSignature:
                turn[-1] = Reasoning(last.text + text)
            # What strict mode reads is in the signature behind the thought.
            elif text and not part.thoughtSignature and not self._is_strict:
                turn.append(Reasoning(text))
        elif isinstance(last, Text):
            turn[-1] = Text(last.text + text)
        elif text:
            turn.append(Text(text))

    def _read_signature(self, part: GeminiPart, path: str, turn: list[Part]) -> None:
        """Restore the reasoning that the signature of a part holds."""
        signature = part.thoughtSignature
        key = self._key
        if not signature:
            return
        sealed = _decode_signature(signature)
        unsealed = None
        if key is not None and sealed is not None:
            unsealed = key.unseal(Purpose.REASONING, sealed)
        if unsealed is not None:
            # It stands for the visible thoughts before it.
            while turn and isinstance(turn[-1], Reasoning):
                turn.pop()
            turn.append(unpack_reasoning(unsealed))
        elif sealed in PLACEHOLDER_SIGNATURES or signature in PLACEHOLDER_SIGNATURES:
            return
        elif self._is_strict:
            raise invalid_value(
                f"{path}.thoughtSignature", "it was not created by this server for this key"
            )
        else:
            self._warnings.append(
                f"{path}.thoughtSignature: it was not created by this server for this key"
            )

    def _read_call(self, part: GeminiPart, path: str) -> ToolCall:
        call = part.functionCall
        assert call is not None
        id = call.id or f"call_{self._n_calls}"
        self._n_calls += 1
        self._open_ids.setdefault(call.name, deque()).append(id)
        arguments = read_json_object(call.args, f"{path}.functionCall.args")
        return ToolCall(id, call.name, arguments or "{}")

    def _read_result(self, part: GeminiPart, path: str) -> Message:
        result = part.functionResponse
        assert result is not None
        open_ids = self._open_ids.get(result.name, deque[str]())
        id = result.id
        if id and id in open_ids:
            open_ids.remove(id)
        elif not id:
            id = open_ids.popleft() if open_ids else f"call_{result.name}"
        text = read_json_object(result.response, f"{path}.functionResponse.response") or "{}"
        parts = ToolResult(id, (Text(text),), answers_call=bool(result.id))
        return Message(Role.TOOL, (parts,), result.name)


def _read_executed_code(part: GeminiPart, path: str) -> list[Part]:
    """Read code that Google ran, and its result, as text for the model."""
    texts: list[Part] = []
    for name in ("executableCode", "codeExecutionResult"):
        raw = part.executableCode if name == "executableCode" else part.codeExecutionResult
        text = read_json_object(raw, f"{path}.{name}")
        if text is not None:
            texts.append(Text(text))
    return texts


def _read_user_part(part: GeminiPart, path: str) -> Part:
    if part.text is not None:
        return Text(part.text)
    if part.inlineData is not None:
        return _read_blob(part.inlineData, f"{path}.inlineData")
    if part.fileData is not None:
        return _read_file(part.fileData, f"{path}.fileData")
    if part.functionCall is not None:
        raise invalid_value(f"{path}.functionCall", "calls belong to the role 'model'")
    executed = _read_executed_code(part, path)
    if not executed:
        raise invalid_value(
            path, "expected text, inlineData, fileData, functionCall or functionResponse"
        )
    return executed[0]


def _read_blob(blob: GeminiBlob, path: str) -> Part:
    data = blob.data.translate(_TO_STANDARD_ALPHABET).rstrip("=")
    padded = data + "=" * (-len(data) % 4)
    media_type = blob.mimeType.lower()
    source = read_base64(padded, media_type or None, f"{path}.data")
    if media_type.startswith("image/"):
        return Image(check_image(source, f"{path}.data"))
    return _build_media(source, media_type, blob.displayName, path)


def _read_file(file: GeminiFileData, path: str) -> Part:
    uri = file.fileUri
    if not uri[:8].lower().startswith(("http://", "https://")):
        raise Unsupported(
            f"'{path}.fileUri': {abbreviate(uri)} is no file of this server; send an http(s) URL "
            f"that it may fetch, or 'inlineData'.",
            param=f"{path}.fileUri",
        )
    media_type = (file.mimeType or "image/").lower()
    source = read_url(uri, f"{path}.fileUri")
    if media_type.startswith("image/"):
        return Image(source)
    return _build_media(source, media_type, file.displayName, path)


def _build_media(source: MediaSource, media_type: str, name: str | None, path: str) -> Part:
    kind, _, subtype = media_type.partition("/")
    if not kind or not subtype:
        raise invalid_value(f"{path}.mimeType", "expected a type such as 'image/png'")
    if kind == "video":
        raise Unsupported(f"'{path}': video is not supported here.", param=path)
    if kind == "audio":
        format = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}.get(subtype, subtype)
        return Audio(source, check_one_of(format, ("wav", "mp3"), f"{path}.mimeType"))
    return File(source, name)


def _decode_signature(signature: str) -> str | None:
    """Decode the Base64 of a signature, in either alphabet; None if it is none."""
    text = signature.translate(_TO_STANDARD_ALPHABET).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return None
