"""Normalized input items, as `/input_items` lists them and a store saves them.

Every item has its type and a status, a message's content is a list of parts, and parts have all the keys that the
official types require. Ids are the client's if it sent any; the others derive from the response's id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from ..body import read_json_value
from ..json_encoding import encode_string
from .client_tools import CALL_TYPES, OUTPUT_TYPES
from .items import RAW_TYPES, find_item_type, read_arguments, read_texts
from .wire import ResponsesContentPart, WireContent, WireItem, minify

STATUSES = ("in_progress", "completed", "incomplete")
ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "compaction": "cmp",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "computer_call": "cu",
    "computer_call_output": "cuo",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
}
"""Id prefixes of items, in input and output."""
_GENERATED_ID = re.compile(r"[a-z]+_([A-Za-z0-9]+)_(?:in)?\d+", re.ASCII)
"""An id that `assign_ids` or a writer generated."""


class NormalizedItem(Struct, frozen=True):
    """One normalized item.

    id: None if the client sent none.
    rest: its other fields as JSON, without the braces.
    """

    type: str
    id: str | None
    rest: bytes

    def render(self, id: str) -> bytes:
        """The complete JSON object."""
        return b'{"id":%s,%s}' % (encode_string(id), self.rest)


def assign_ids(items: Sequence[NormalizedItem], response_id: str) -> tuple[tuple[str, bytes], ...]:
    """(id, JSON object) of each item. An id that an earlier item already has is replaced."""
    # An id contains its response's, so that `find_response_id` needs no index from items to responses.
    tail = response_id.removeprefix("resp_")
    items_by_id: dict[str, bytes] = {}
    for i, item in enumerate(items):
        # `in` separates the ids of the input from those of the output: both are numbered from 0.
        generated_id = f"{ID_PREFIXES.get(item.type, 'item')}_{tail}_in{i}"
        id = item.id if item.id and item.id not in items_by_id else generated_id
        items_by_id[id] = item.render(id)
    return tuple(items_by_id.items())


class _Item(Struct, frozen=True):
    type: str
    id: str


def read_item_id(row: bytes) -> str:
    """The id of an item that has one."""
    return msgspec.json.decode(row, type=_Item).id


def read_stored_item(row: bytes) -> NormalizedItem:
    """Parse an item of the store."""
    parsed = msgspec.json.decode(row, type=_Item)
    fields = msgspec.json.decode(row, type=dict[str, Raw])
    rest = b",".join(encode_string(name) + b":" + bytes(value) for name, value in fields.items() if name != "id")
    return NormalizedItem(parsed.type, parsed.id, rest)


def find_response_id(item: str) -> str | None:
    """The id of the response that generated this item id; None if no response did."""
    match = _GENERATED_ID.fullmatch(item)
    return None if match is None else f"resp_{match[1]}"


_STATUS, _EXECUTION = {"status": Raw(b'"completed"')}, {"execution": Raw(b'"client"')}
_REQUIRED_FIELDS: Mapping[str, dict[str, Raw]] = {
    **dict.fromkeys(sorted(CALL_TYPES | OUTPUT_TYPES), _STATUS),
    "computer_call": {**_STATUS, "pending_safety_checks": Raw(b"[]")},
    "tool_search_call": {**_STATUS, **_EXECUTION},
    "tool_search_output": {**_STATUS, **_EXECUTION},
}
"""Fields that a listed item has and a client may leave out."""


def normalize_item(item: WireItem, raw: dict[str, Raw], path: str) -> NormalizedItem:
    """Normalize an item that `read_items` has accepted. raw: its original fields, if its type is one of RAW_TYPES."""
    kind = find_item_type(item, path)
    if kind in RAW_TYPES:
        return NormalizedItem(kind, item.id, _render_raw({**_REQUIRED_FIELDS.get(kind, {}), **raw}, path))
    # OpenAI's types allow no other status in `/input_items`, and clients may send any.
    status = item.status if item.status in STATUSES else "completed"
    return NormalizedItem(kind, item.id, _render_fields(kind, item, status or "completed", path))


def _render_fields(kind: str, item: WireItem, status: str, path: str) -> bytes:
    match kind:
        case "message":
            return _render_message(item, status)
        case "reasoning":
            return _render_reasoning(item, status)
        case "compaction":
            return b'"type":"compaction","encrypted_content":' + encode_string(item.encrypted_content or "")
        case "item_reference" | "compaction_trigger":
            return b'"type":"%s"' % kind.encode()
        case _:
            return _render_call(kind, item, status, path)


def _render_message(item: WireItem, status: str) -> bytes:
    role = item.role or ""
    content = b",".join(_render_parts(item.content, "output_text" if role == "assistant" else "input_text"))
    phase = b"" if item.phase is None else b',"phase":' + encode_string(item.phase)
    return b'"type":"message","status":"%s","role":"%s","content":[%s]%s' % (
        status.encode(), role.encode(), content, phase,
    )  # fmt: skip


def _render_call(kind: str, item: WireItem, status: str, path: str) -> bytes:
    """A call, or what came of it."""
    is_output = kind.endswith("_output")
    # Local shell calls have only an id, and their outputs refer to it.
    call_id = item.call_id if is_output else item.call_id or item.id or ""
    fields = b'"type":"%s","status":"%s"' % (kind.encode(), status.encode())
    fields += _render_present(call_id=call_id, name=item.name, namespace=item.namespace)
    match kind:
        case "function_call":
            return fields + b',"arguments":' + encode_string(read_arguments(item.arguments, f"{path}.arguments"))
        case "custom_tool_call":
            return fields + b',"input":' + encode_string(read_arguments(item.input, f"{path}.input"))
        case _:
            return fields + b',"output":' + _render_output(item.output)


def _render_reasoning(item: WireItem, status: str) -> bytes:
    summary = b",".join(_render_text_part("summary_text", text) for text in read_texts(item.summary))
    fields = b'"type":"reasoning","status":"%s","summary":[%s]' % (status.encode(), summary)
    content = b",".join(_render_text_part("reasoning_text", text) for text in read_texts(item.content))
    if content:
        fields += b',"content":[%s]' % content
    if item.encrypted_content is not None:
        fields += b',"encrypted_content":' + encode_string(item.encrypted_content)
    return fields


def _render_output(output: WireContent | None) -> bytes:
    return (
        encode_string(output) if isinstance(output, str) else b"[%s]" % b",".join(_render_parts(output, "input_text"))
    )


def _render_parts(content: WireContent | None, text_kind: str) -> Iterable[bytes]:
    if isinstance(content, str):
        return [_render_text_part(text_kind, content)] if content else []
    if not isinstance(content, list):
        return []
    return [
        _render_text_part(text_kind, part) if isinstance(part, str) else _render_content_part(part, text_kind)
        for part in content
    ]


def _render_text_part(kind: str, text: str) -> bytes:
    end = b',"annotations":[],"logprobs":[]}' if kind == "output_text" else b"}"
    return b'{"type":"%s","text":%s%s' % (kind.encode(), encode_string(text), end)


def _render_content_part(part: ResponsesContentPart, text_kind: str) -> bytes:
    match part.type:
        case "refusal" if text_kind == "output_text":
            return b'{"type":"refusal","refusal":%s}' % encode_string(part.refusal or "")
        case "input_image":
            url, detail = part.image_url, part.detail
            if url is not None and not isinstance(url, str):
                # The form of Chat Completions, which clients that convert between the APIs leave as it is.
                url, detail = url.url, url.detail or detail
            location = _render_present(image_url=url, file_id=part.file_id)
            return b'{"type":"input_image","detail":%s%s}' % (encode_string(detail or "auto"), location)
        case "input_file":
            return b'{"type":"input_file"%s}' % _render_present(
                file_data=part.file_data, file_id=part.file_id, file_url=part.file_url, filename=part.filename
            )
        case "input_audio" if part.input_audio is not None:
            audio = part.input_audio
            return b'{"type":"input_audio","input_audio":{"data":%s,"format":%s}}' % (
                encode_string(audio.data), encode_string(audio.format),
            )  # fmt: skip
        case _:
            return _render_text_part(text_kind, (part.refusal if part.type == "refusal" else part.text) or "")


def _render_present(**fields: str | None) -> bytes:
    """Render the fields that are not None, each after a comma."""
    present = ((name, value) for name, value in fields.items() if value is not None)
    return b"".join(b',"%s":%s' % (name.encode(), encode_string(value)) for name, value in present)


def _render_raw(raw: dict[str, Raw], path: str) -> bytes:
    # These fields have not been decoded yet, and `minify` requires valid JSON.
    for name, value in raw.items():
        read_json_value(value, f"{path}.{name[:64]}")
    return b",".join(encode_string(name) + b":" + minify(value) for name, value in raw.items() if name != "id")
