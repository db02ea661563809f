"""Renames a body's fields from snake_case to lowerCamelCase, which Google's parser also
accepts.

Only fields of the body's structs are renamed; free-form values such as schemas and
arguments stay as they are.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ..request_body import check_text, translate_error

_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_SNAKE = re.compile(r"_([a-z])")


class _Shape(Struct):
    """The fields of a struct that hold structs, by name; and whether each is a list."""

    inner: dict[str, tuple[type[Struct], bool]]


def normalize_spelling(data: bytes, body: type[Struct], *nested: tuple[str, type[Struct]]) -> bytes:
    """Return the body with its fields in lowerCamelCase. Raises RequestError.

    nested: raw fields that are decoded into a struct of their own.
    """
    check_text(data)
    if b"_" not in data:
        return data
    try:
        return _rename(data, body, dict(nested))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise translate_error(error, data) from None


def _rename(data: bytes, struct: type[Struct], raw_fields: dict[str, type[Struct]]) -> bytes:
    fields = _decode_object(data)
    inner = _find_shape(struct).inner | {name: (type, False) for name, type in raw_fields.items()}
    members: list[bytes] = []
    for name, raw in fields.items():
        camel = _SNAKE.sub(lambda match: match[1].upper(), name)
        value = bytes(raw)
        if (found := inner.get(camel)) is not None:
            value = _rename_value(value, *found, raw_fields)
        members.append(b"%s:%s" % (msgspec.json.encode(camel), value))
    return b"{%s}" % b",".join(members)


def _rename_value(
    value: bytes, struct: type[Struct], is_list: bool, raw_fields: dict[str, type[Struct]]
) -> bytes:
    # A value of another type is left to the decoder, which names its place.
    if is_list and value.startswith(b"["):
        items = [
            _rename(item, struct, raw_fields) if item.startswith(b"{") else item
            for item in map(bytes, _decode_list(value))
        ]
        return b"[%s]" % b",".join(items)
    return _rename(value, struct, raw_fields) if value.startswith(b"{") else value


@cache
def _find_shape(struct: type[Struct]) -> _Shape:
    info: Any = msgspec.inspect.type_info(struct)
    inner: dict[str, tuple[type[Struct], bool]] = {}
    for field in info.fields:
        for option in getattr(field.type, "types", (field.type,)):
            is_list = isinstance(option, msgspec.inspect.ListType)
            item = option.item_type if is_list else option
            if isinstance(item, msgspec.inspect.StructType):
                inner[field.encode_name] = (item.cls, is_list)
    return _Shape(inner)
