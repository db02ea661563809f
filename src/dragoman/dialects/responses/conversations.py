"""Conversations: their bodies, and what is answered. What a conversation holds are items as in Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ..body import Body, Shape, invalid, missing
from ..fields import check_metadata
from ..text import line_safe, quoted
from .items import HOSTED, read_items
from .normal import PREFIXES, InputItem, normal_item
from .wire import WireItem

CONVERSATION_PREFIX = "conv_"
MAX_ITEMS = 20
"""Of one request."""

Items = Annotated[list[WireItem], Meta(max_length=MAX_ITEMS)]


class _Creation(Struct, frozen=True):
    metadata: dict[str, str] | None = None
    items: Items | None = None


class _Addition(Struct, frozen=True):
    items: Items | None = None


class _Update(Struct, frozen=True):
    metadata: dict[str, str] | None = None


_CREATION, _ADDITION, _UPDATE = Shape(_Creation), Shape(_Addition), Shape(_Update)


class NewItems(Struct, frozen=True):
    """metadata: as JSON. unknown: names of fields that nobody knows."""

    items: tuple[InputItem, ...]
    metadata: bytes = b"{}"
    unknown: tuple[str, ...] = ()


def read_creation(data: bytes) -> NewItems:
    """An empty body is a conversation without anything. Raises RequestError, and nothing else."""
    parsed = Body(data or b"{}")
    body = parsed.read(_CREATION)
    unknown = tuple(parsed.others(_CREATION.names))
    return NewItems(_items(body.items or [], parsed), metadata_json(body.metadata), unknown)


def read_addition(data: bytes) -> NewItems:
    parsed = Body(data)
    body = parsed.read(_ADDITION)
    if not body.items:
        raise missing("items")
    return NewItems(_items(body.items, parsed), unknown=tuple(parsed.others(_ADDITION.names)))


def read_update(data: bytes) -> bytes:
    """The metadata, as JSON; null clears it."""
    parsed = Body(data)
    body = parsed.read(_UPDATE)
    if "metadata" not in parsed.fields:
        raise missing("metadata")
    return metadata_json(body.metadata)


def metadata_json(metadata: dict[str, str] | None) -> bytes:
    check_metadata(metadata)
    return line_safe(msgspec.json.encode(metadata or {}))


def item_prefix(item: InputItem) -> str:
    """What the id of an item begins with that came without one."""
    return PREFIXES.get(item.type, "item") + "_"


def conversation_object(id: str, created: int, metadata: bytes) -> bytes:
    return b'{"id":%s,"object":"conversation","created_at":%d,"metadata":%s}' % (quoted(id), created, metadata)


def deleted_conversation(id: str) -> bytes:
    return b'{"id":%s,"object":"conversation.deleted","deleted":true}' % quoted(id)


def _items(items: Sequence[WireItem], parsed: Body) -> tuple[InputItem, ...]:
    read_items(items, lambda name, _: name, None, [], at="items")
    for i, item in enumerate(items):
        if item.type == "item_reference" or (item.type is None and item.role is None):
            raise invalid(f"items[{i}].type", "a conversation cannot contain item references")
    raw: list[dict[str, Raw]] = [{}] * len(items)
    if any(item.type in HOSTED for item in items):
        raw = msgspec.json.decode(parsed.fields["items"], type=list[dict[str, Raw]])
    found = zip(items, raw, strict=True)
    return tuple(normal_item(item, fields, f"items[{i}]") for i, (item, fields) in enumerate(found))
