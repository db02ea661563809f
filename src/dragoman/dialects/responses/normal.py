"""The input's items in normal form: what `/input_items` lists and a store keeps.

Every item has its type and a status, a message's content is a list of parts, parts have all the keys that the
official types require. Ids are those of the client where it gave some; the others derive from the response's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw, Struct

from ..body import json_value
from ..text import quoted
from .items import HOSTED, kind_of, read_arguments, texts_of
from .text import compact
from .wire import Content, ContentPart, WireItem

STATUSES = ("in_progress", "completed", "incomplete")
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
}
"""What the ids of items begin with, those of an answer too."""
_MADE = re.compile(r"[a-z]+_([A-Za-z0-9]+)_(?:in)?\d+", re.ASCII)
"""An id that `rows` or a writer made."""


class InputItem(Struct, frozen=True):
    """One item. id: None where the client gave none. rest: its other fields as JSON, without the braces."""

    type: str
    id: str | None
    rest: bytes

    def row(self, id: str) -> bytes:
        """The whole JSON object."""
        return b'{"id":%s,%s}' % (quoted(id), self.rest)


def rows(items: Sequence[InputItem], response_id: str) -> tuple[tuple[str, bytes], ...]:
    """(id, JSON object) of each item. An id that an earlier item has already is replaced too."""
    tail = response_id.removeprefix("resp_")
    told: dict[str, bytes] = {}
    for i, item in enumerate(items):
        made = f"{PREFIXES.get(item.type, 'item')}_{tail}_in{i}"
        id = item.id if item.id and item.id not in told else made
        told[id] = item.row(id)
    return tuple(told.items())


class _Item(Struct, frozen=True):
    type: str
    id: str


def item_id(row: bytes) -> str:
    """The id of an item that has one."""
    return msgspec.json.decode(row, type=_Item).id


def stored_item(row: bytes) -> InputItem:
    """An item as it was kept."""
    told = msgspec.json.decode(row, type=_Item)
    fields = msgspec.json.decode(row, type=dict[str, Raw])
    rest = b",".join(quoted(name) + b":" + bytes(value) for name, value in fields.items() if name != "id")
    return InputItem(told.type, told.id, rest)


def response_of(item: str) -> str | None:
    """The id of the response that gave this id to an item; None where none can have."""
    found = _MADE.fullmatch(item)
    return None if found is None else f"resp_{found[1]}"


def normal_item(item: WireItem, raw: dict[str, Raw], at: str) -> InputItem:
    """An item that `read_items` has taken. raw: its fields as they came, where it is a hosted tool's."""
    kind = kind_of(item, at)
    if kind in HOSTED:
        return InputItem(kind, item.id, _as_it_came(raw, at))
    status = item.status if item.status in STATUSES else "completed"
    return InputItem(kind, item.id, _rest(kind, item, status or "completed", at))


def _rest(kind: str, item: WireItem, status: str, at: str) -> bytes:
    match kind:
        case "message":
            return _message(item, status)
        case "reasoning":
            return _reasoning(item, status)
        case "compaction":
            return b'"type":"compaction","encrypted_content":' + quoted(item.encrypted_content or "")
        case "item_reference" | "compaction_trigger":
            return b'"type":"%s"' % kind.encode()
        case _:
            return _called(kind, item, status, at)


def _message(item: WireItem, status: str) -> bytes:
    role = item.role or ""
    content = b",".join(_parts(item.content, "output_text" if role == "assistant" else "input_text"))
    phase = b"" if item.phase is None else b',"phase":' + quoted(item.phase)
    return b'"type":"message","status":"%s","role":"%s","content":[%s]%s' % (
        status.encode(), role.encode(), content, phase,
    )  # fmt: skip


def _called(kind: str, item: WireItem, status: str, at: str) -> bytes:
    """A call, or what came of it."""
    fields = b'"type":"%s","status":"%s","call_id":%s' % (
        kind.encode(), status.encode(), quoted(item.call_id or item.id or ""),
    )  # fmt: skip
    fields += _given(name=item.name, namespace=item.namespace)
    match kind:
        case "function_call":
            return fields + b',"arguments":' + quoted(read_arguments(item.arguments, f"{at}.arguments"))
        case "custom_tool_call":
            return fields + b',"input":' + quoted(read_arguments(item.input, f"{at}.input"))
        case _:
            return fields + b',"output":' + _output(item.output)


def _reasoning(item: WireItem, status: str) -> bytes:
    summary = b",".join(_part("summary_text", text) for text in texts_of(item.summary))
    fields = b'"type":"reasoning","status":"%s","summary":[%s]' % (status.encode(), summary)
    content = b",".join(_part("reasoning_text", text) for text in texts_of(item.content))
    if content:
        fields += b',"content":[%s]' % content
    if item.encrypted_content is not None:
        fields += b',"encrypted_content":' + quoted(item.encrypted_content)
    return fields


def _output(output: Content | None) -> bytes:
    return quoted(output) if isinstance(output, str) else b"[%s]" % b",".join(_parts(output, "input_text"))


def _parts(content: Content | None, text_kind: str) -> Iterable[bytes]:
    if isinstance(content, str):
        return [_part(text_kind, content)] if content else []
    if not isinstance(content, list):
        return []
    return [_part(text_kind, one) if isinstance(one, str) else _content_part(one, text_kind) for one in content]


def _part(kind: str, text: str) -> bytes:
    end = b',"annotations":[],"logprobs":[]}' if kind == "output_text" else b"}"
    return b'{"type":"%s","text":%s%s' % (kind.encode(), quoted(text), end)


def _content_part(part: ContentPart, text_kind: str) -> bytes:
    match part.type:
        case "refusal" if text_kind == "output_text":
            return b'{"type":"refusal","refusal":%s}' % quoted(part.refusal or "")
        case "input_image":
            url, detail = part.image_url, part.detail
            if url is not None and not isinstance(url, str):
                url, detail = url.url, url.detail or detail
            given = _given(image_url=url, file_id=part.file_id)
            return b'{"type":"input_image","detail":%s%s}' % (quoted(detail or "auto"), given)
        case "input_file":
            return b'{"type":"input_file"%s}' % _given(
                file_data=part.file_data, file_id=part.file_id, file_url=part.file_url, filename=part.filename
            )
        case "input_audio" if part.input_audio is not None:
            audio = part.input_audio
            return b'{"type":"input_audio","input_audio":{"data":%s,"format":%s}}' % (
                quoted(audio.data), quoted(audio.format),
            )  # fmt: skip
        case _:
            return _part(text_kind, (part.refusal if part.type == "refusal" else part.text) or "")


def _given(**fields: str | None) -> bytes:
    """Those that are there, each after a comma."""
    said = ((name, value) for name, value in fields.items() if value is not None)
    return b"".join(b',"%s":%s' % (name.encode(), quoted(value)) for name, value in said)


def _as_it_came(raw: dict[str, Raw], at: str) -> bytes:
    for name, value in raw.items():
        json_value(value, f"{at}.{name[:64]}")
    return b",".join(quoted(name) + b":" + compact(value) for name, value in raw.items() if name != "id")
