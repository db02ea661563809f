"""The items of an input: parsed for the prompt, and normalized as `/input_items` lists
them and a store saves them.

Every normalized item has its type, and a status if its official type has one; a
message's content is a list of parts, and parts have all the keys that the official
types require. Items of hosted tools are stored as they were sent. Ids are the client's
if it sent any; the others derive from the response's id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from ..json_encoding import encode_string
from ..request_body import BodySchema, ParsedBody, prefix_param, read_json_value
from .client_tools import CALL_TYPES, OUTPUT_TYPES
from .item_reader import ITEM_STATUSES, find_item_type, read_arguments, read_texts
from .parsed_items import ParsedItem
from .wire import ResponsesContentPart, WireContent, WireItem, minify

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
    "web_search_call": "ws",
    "file_search_call": "fs",
    "image_generation_call": "ig",
    "code_interpreter_call": "ci",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
}
"""Id prefixes of items, in input and output."""
_GENERATED_ID = re.compile(r"[a-z]+_([A-Za-z0-9]+)_(?:in)?\d+", re.ASCII)
"""An id that `assign_ids` or a writer generated, such as `msg_4f2a_in0` (input) or
`msg_4f2a_0` (output).
"""
_WIRE_ITEM = BodySchema(WireItem)
_STATUS = {"status": Raw(b'"completed"')}
_EXECUTION = {"execution": Raw(b'"client"')}
_REQUIRED_FIELDS: Mapping[str, dict[str, Raw]] = {
    **dict.fromkeys(sorted(CALL_TYPES | OUTPUT_TYPES), _STATUS),
    "computer_call": {**_STATUS, "pending_safety_checks": Raw(b"[]")},
    "tool_search_call": {**_STATUS, **_EXECUTION},
    "tool_search_output": {**_STATUS, **_EXECUTION},
}
"""Fields that a listed item must have but a client may leave out, by item type."""
_PATCH_STATUSES = ("completed", "failed")
"""The statuses of an `apply_patch_call_output`, unlike those of all other items."""


class InputItem(Struct, frozen=True):
    """One item of the input.

    type: the item's type, also where `wire` has none.
    id: None if the client sent none.
    wire: the item as it was sent.
    fields: all of its fields, if it is stored as it was sent; otherwise empty.
    parsed: the parsed item; `wire` if it has not been parsed yet.
    """

    type: str
    id: str | None
    wire: WireItem
    fields: dict[str, Raw] = {}
    parsed: ParsedItem | WireItem = None

    def render(self, id: str) -> bytes:
        """Render the complete JSON object, normalized."""
        return b'{"id":%s,%s}' % (encode_string(id), self._render_fields())

    def _render_fields(self) -> bytes:
        kind = self.type
        item = self.wire
        if self.fields:
            return self._render_raw_fields()
        rendered = b'"type":"%s"' % kind.encode()
        if kind == "compaction":
            return rendered + b',"encrypted_content":' + encode_string(item.encrypted_content or "")
        if kind in ("item_reference", "compaction_trigger"):
            return rendered
        # OpenAI's types allow no other status in `/input_items`, and clients may send
        # any.
        rendered += (
            b',"status":"%s"'
            % (item.status if item.status in ITEM_STATUSES else "completed").encode()
        )
        match kind:
            case "message":
                content = _render_parts(
                    item.content, "output_text" if item.role == "assistant" else "input_text"
                )
                phase = b"" if item.phase is None else b',"phase":' + encode_string(item.phase)
                return rendered + b',"role":"%s","content":%s%s' % (
                    (item.role or "").encode(),
                    content,
                    phase,
                )
            case "reasoning":
                rendered += b',"summary":%s' % _render_parts(
                    list(read_texts(item.summary)), "summary_text"
                )
                if texts := read_texts(item.content):
                    rendered += b',"content":%s' % _render_parts(list(texts), "reasoning_text")
                return rendered + _render_present(encrypted_content=item.encrypted_content)
            case "function_call":
                field = b"arguments"
                value = encode_string(read_arguments(item.arguments, "arguments"))
            case "custom_tool_call":
                field = b"input"
                value = encode_string(read_arguments(item.input, "input"))
            case _:
                output = item.output
                field = b"output"
                value = (
                    encode_string(output)
                    if isinstance(output, str)
                    else _render_parts(output, "input_text")
                )
        call_id = item.call_id if kind.endswith("_output") else item.call_id or item.id or ""
        present = _render_present(call_id=call_id, name=item.name, namespace=item.namespace)
        return rendered + present + b',"%s":%s' % (field, value)

    def _render_raw_fields(self) -> bytes:
        """Render the fields of an item that is stored as it was sent. Hosted tools keep
        their own statuses.
        """
        required = _REQUIRED_FIELDS.get(self.type, {})
        fields = {**required, **self.fields}
        statuses = _PATCH_STATUSES if self.type == "apply_patch_call_output" else ITEM_STATUSES
        if required and self.wire.status not in statuses:
            fields |= _STATUS
        return b",".join(
            encode_string(name) + b":" + minify(raw) for name, raw in fields.items() if name != "id"
        )


def assign_ids(items: Sequence[InputItem], response_id: str) -> tuple[tuple[str, bytes], ...]:
    """Return (id, JSON object) of each item. An id that an earlier item already has is
    replaced.
    """
    # An id contains its response's, so that `find_response_id` needs no index from
    # items to responses.
    tail = response_id.removeprefix("resp_")
    items_by_id: dict[str, bytes] = {}
    for i, item in enumerate(items):
        # `in` separates the ids of the input from those of the output: both are
        # numbered from 0.
        generated_id = f"{ID_PREFIXES.get(item.type, 'item')}_{tail}_in{i}"
        id = item.id if item.id and item.id not in items_by_id else generated_id
        items_by_id[id] = item.render(id)
    return tuple(items_by_id.items())


class _Item(Struct, frozen=True):
    type: str
    id: str


def read_item_id(row: bytes) -> str:
    """Return the id of an item that has one."""
    return msgspec.json.decode(row, type=_Item).id


def read_stored_items(rows: Sequence[bytes]) -> list[WireItem]:
    """Decode items of the store. Raises RequestError, which names the item by its
    position.
    """
    items: list[WireItem] = []
    for i, row in enumerate(rows):
        try:
            items.append(_WIRE_ITEM.decoder.decode(row))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            # Rows were validated when they were stored; another version may have stored
            # this one. ParsedBody decodes it again for an error that names the field.
            with prefix_param(f"input[{i}]"):
                items.append(ParsedBody(row).decode(_WIRE_ITEM))
    return items


def read_referenced_item(row: bytes) -> InputItem:
    """Decode the stored item that an `item_reference` refers to."""
    (item,) = read_stored_items((row,))
    fields = msgspec.json.decode(row, type=dict[str, Raw])
    return InputItem(find_item_type(item, "input"), item.id, item, fields, parsed=item)


def find_response_id(item: str) -> str | None:
    """Return the response id that a generated item id contains; None if the id does not
    have that form.

    The response need not exist.
    """
    match = _GENERATED_ID.fullmatch(item)
    return None if match is None else f"resp_{match[1]}"


def build_input_item(
    item: WireItem, fields: dict[str, Raw], parsed: ParsedItem, path: str
) -> InputItem:
    """Build an InputItem.

    fields: all fields of an item whose type is one of RAW_TYPES; otherwise empty.
    path: the item's field, for errors.

    Raises RequestError if one of the fields is not valid JSON.
    """
    # These fields have not been decoded yet, and `minify` requires valid JSON.
    for name, value in fields.items():
        read_json_value(value, f"{path}.{name[:64]}")
    return InputItem(find_item_type(item, path), item.id, item, fields, parsed)


def _render_parts(content: WireContent | None, text_kind: str) -> bytes:
    """Render content as an array of parts. text_kind: the type of a part that was sent
    as a string.
    """
    parts: Sequence[ResponsesContentPart | str] = ()
    if isinstance(content, str):
        parts = (content,) if content else ()
    elif isinstance(content, list):
        parts = content
    return b"[%s]" % b",".join(
        _render_text_part(text_kind, part)
        if isinstance(part, str)
        else _render_content_part(part, text_kind)
        for part in parts
    )


def _render_text_part(kind: str, text: str) -> bytes:
    end = b',"annotations":[],"logprobs":[]}' if kind == "output_text" else b"}"
    return b'{"type":"%s","text":%s%s' % (kind.encode(), encode_string(text), end)


def _render_content_part(part: ResponsesContentPart, text_kind: str) -> bytes:
    match part.type:
        case "refusal" if text_kind == "output_text":
            return b'{"type":"refusal","refusal":%s}' % encode_string(part.refusal or "")
        case "input_image":
            url = part.image_url
            detail = part.detail
            if url is not None and not isinstance(url, str):
                # The form of Chat Completions, which clients that convert between the
                # APIs leave as it is.
                url, detail = url.url, url.detail or detail
            location = _render_present(image_url=url, file_id=part.file_id)
            return b'{"type":"input_image","detail":%s%s}' % (
                encode_string(detail or "auto"),
                location,
            )
        case "input_file":
            return b'{"type":"input_file"%s}' % _render_present(
                file_data=part.file_data,
                file_id=part.file_id,
                file_url=part.file_url,
                filename=part.filename,
            )
        case "input_audio" if part.input_audio is not None:
            audio = part.input_audio
            return b'{"type":"input_audio","input_audio":{"data":%s,"format":%s}}' % (
                encode_string(audio.data), encode_string(audio.format),
            )  # fmt: skip
        case _:
            return _render_text_part(
                text_kind, (part.refusal if part.type == "refusal" else part.text) or ""
            )


def _render_present(**fields: str | None) -> bytes:
    """Render the fields that are not None, each after a comma."""
    present = ((name, value) for name, value in fields.items() if value is not None)
    return b"".join(b',"%s":%s' % (name.encode(), encode_string(value)) for name, value in present)
