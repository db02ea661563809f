"""The input's items to the core's messages: what one answer left as several items is one turn again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
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
from ..sealing import Check, Purpose, Sealing
from .summary import recalled
from .wire import Content, ContentPart, InputAudio, WireItem

T = TypeVar("T")

TRIGGER = "compaction_trigger"
READ = (
    "message",
    "reasoning",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "compaction",
    TRIGGER,
)
REFERENCES = ("item_reference",)
"""Items that stand for others, which only a server with a memory can tell."""
HOSTED = (
    "additional_tools",
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)
ROLES = ("user", "assistant", "system", "developer")
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
PARTS = (*TEXTS, "refusal", "input_image", "input_file", "input_audio")
AUDIO_FORMATS = ("wav", "mp3", "flac", "opus", "ogg", "m4a", "aac", "webm", "pcm16")

Join = Callable[[str, str | None], str]
"""A tool's name and namespace to what the model calls it."""


def kind_of(item: WireItem, at: str) -> str:
    """An item without a type is a message, or a reference if it has no role."""
    if item.type is not None:
        return one_of(item.type, (*READ, *REFERENCES, *HOSTED), f"{at}.type")
    if item.role is not None:
        return "message"
    if item.id is None:
        raise missing(f"{at}.type")
    return "item_reference"


def read_items(
    items: Sequence[WireItem], join: Join, sealing: Sealing | None, warnings: list[str], at: str = "input"
) -> tuple[Message, ...]:
    """Items that stand for others are passed over.

    at: the field that they came in. Raises RequestError with the path of the offending field.
    """
    turns = _Turns(join, sealing, warnings)
    for i, item in enumerate(items):
        turns.add(item, f"{at}[{i}]")
    return turns.messages()


class _Turns:
    """The messages so far, and the assistant's turn that is not over. Two texts in a row were two turns."""

    def __init__(self, join: Join, sealing: Sealing | None, warnings: list[str]) -> None:
        self._join, self._sealing, self._warnings = join, sealing, warnings
        self._done: list[Message] = []
        self._open: list[Part] = []
        self._names: dict[str, str] = {}

    def messages(self) -> tuple[Message, ...]:
        self._close()
        return tuple(self._done)

    def add(self, item: WireItem, at: str) -> None:
        match kind_of(item, at):
            case "message":
                self._message(item, at)
            case "reasoning":
                self._reason(item, at)
            case "function_call":
                self._call(item, read_arguments(item.arguments, f"{at}.arguments"), at, custom=False)
            case "custom_tool_call":
                self._call(item, read_arguments(item.input, f"{at}.input"), at, custom=True)
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, at)
            case "compaction":
                self._recall(item, at)
            case kind if kind in HOSTED:
                self._warnings.append(f"{at}: items of type '{kind}' cannot be replayed here; it was left out")
            case "item_reference" if not item.id:
                raise missing(f"{at}.id")
            case _:
                """A reference is for a server with a memory, and what a trigger asks for is asked at the end."""

    def _close(self) -> None:
        if self._open:
            self._done.append(Message(Role.ASSISTANT, tuple(self._open)))
            self._open = []

    def _message(self, item: WireItem, at: str) -> None:
        if item.role is None:
            raise missing(f"{at}.role")
        role = one_of(item.role, ROLES, f"{at}.role")
        parts = tuple(_content(item.content, f"{at}.content"))
        if role != "assistant":
            if item.content is None:
                raise missing(f"{at}.content")
            self._close()
            self._done.append(Message(Role(role), tuple(map(_plain, parts))))
            return
        if parts and self._open and isinstance(self._open[-1], Text | Refusal):
            self._close()
        self._open += parts

    def _reason(self, item: WireItem, at: str) -> None:
        """What the blob holds, if it can be read, else the content, else the summary."""
        thought = self._unseal(item, at)
        if thought is None:
            thought = "\n\n".join(texts_of(item.content) or texts_of(item.summary))
        if thought:
            self._open.append(Reasoning(thought))

    def _unseal(self, item: WireItem, at: str) -> str | None:
        sealed, key = item.encrypted_content, self._sealing
        thought = None if sealed is None or key is None else key.unseal(Purpose.REASONING, sealed)
        if sealed is None or thought is not None:
            return thought
        if key is not None and key.check is Check.STRICT:
            raise _foreign(at)
        instead = (
            "left out" if not (texts_of(item.content) or texts_of(item.summary)) else "replaced by its visible content"
        )
        self._warnings.append(f"{at}: its encrypted reasoning cannot be read here; it was {instead}")
        return None

    def _recall(self, item: WireItem, at: str) -> None:
        sealed, key = _given(item.encrypted_content, f"{at}.encrypted_content"), self._sealing
        summary = None if key is None else key.unseal(Purpose.COMPACTION, sealed)
        if summary is None:
            raise _foreign(at)
        self._close()
        self._done = recalled(summary, self._done)

    def _call(self, item: WireItem, arguments: str, at: str, *, custom: bool) -> None:
        call_id = item.call_id or item.id
        if not call_id:
            raise missing(f"{at}.call_id")
        if not item.name:
            raise missing(f"{at}.name")
        name = self._join(item.name, item.namespace)
        self._names[call_id] = name
        self._open.append(ToolCall(call_id, name, arguments, custom=custom))

    def _result(self, item: WireItem, at: str) -> None:
        if not item.call_id:
            raise missing(f"{at}.call_id")
        if item.output is None:
            raise missing(f"{at}.output")
        content = tuple(_told(part) for part in _content(item.output, f"{at}.output"))
        self._close()
        result = ToolResult(item.call_id, content)
        self._done.append(Message(Role.TOOL, (result,), self._names.get(item.call_id)))


def _foreign(at: str) -> RequestError:
    return invalid(f"{at}.encrypted_content", "it is damaged, or was not created by this server for this key")


def _plain(part: Part) -> Part:
    """A refusal that somebody else than the assistant repeats is text."""
    return Text(part.text) if isinstance(part, Refusal) else part


def _told(part: Part) -> Text | Image | Audio | File:
    """A tool's refusal is, to the model, what the tool said."""
    if isinstance(part, Text | Image | Audio | File):
        return part
    return Text(part.text if isinstance(part, Refusal) else "")


def _content(content: Content | None, at: str) -> Iterator[Part]:
    if isinstance(content, dict):
        raise invalid(at, "expected a string or an array of parts")
    if isinstance(content, str):
        if content:
            yield Text(content)
        return
    for i, part in enumerate(content or ()):
        yield Text(part) if isinstance(part, str) else _part(part, f"{at}[{i}]")


def _part(part: ContentPart, at: str) -> Part:
    kind = one_of(_given(part.type, f"{at}.type"), PARTS, f"{at}.type")
    if kind in TEXTS:
        return Text(_given(part.text, f"{at}.text"))
    match kind:
        case "refusal":
            return Refusal(_given(part.refusal, f"{at}.refusal"))
        case "input_image":
            return _image(part, at)
        case "input_file":
            return _file(part, at)
        case _:
            return _audio(_given(part.input_audio, f"{at}.input_audio"), f"{at}.input_audio")


def texts_of(content: Content | None) -> list[str]:
    """The texts of a reasoning item's content or summary. What is no text there says nothing."""
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    texts = (part if isinstance(part, str) else part.text for part in content)
    return [text for text in texts if text]


def read_arguments(raw: Raw, param: str) -> str:
    """A model's bad JSON is replayed as it was. Some local clients replay the object itself."""
    text = bytes(raw).strip()
    if text in (b"", b"null"):
        return ""
    try:
        return msgspec.json.decode(text, type=str) if text.startswith(b'"') else json_text(raw, param) or ""
    except (RequestError, msgspec.MsgspecError, UnicodeDecodeError):
        raise invalid(param, "expected a string") from None


def _given(value: T | None, param: str) -> T:
    if value is None:
        raise missing(param)
    return value


def _image(part: ContentPart, at: str) -> Image:
    """Chat's form, an object with a url, comes too."""
    url, detail = part.image_url, part.detail
    if url is not None and not isinstance(url, str):
        url, detail = url.url, url.detail or detail
    detail = one_of(detail or "auto", ("auto", "low", "high", "original"), f"{at}.detail")
    if url is not None:
        return Image(read_image_url(url, f"{at}.image_url"), detail)
    return Image(Stored(_given(part.file_id, f"{at}.image_url")), detail)


def _file(part: ContentPart, at: str) -> File:
    if part.file_id:
        return File(Stored(part.file_id), part.filename)
    if part.file_url is not None:
        return File(read_url(part.file_url, f"{at}.file_url"), part.filename)
    data = _given(part.file_data, f"{at}.file_data")
    return File(read_base64(data, None, f"{at}.file_data"), part.filename)


def _audio(audio: InputAudio, at: str) -> Audio:
    format = one_of(audio.format, AUDIO_FORMATS, f"{at}.format")
    return Audio(read_base64(audio.data, f"audio/{format}", f"{at}.data"), format)
