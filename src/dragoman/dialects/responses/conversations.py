"""Request and response bodies of conversations. A conversation contains items as in Responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..body import BodySchema, ParsedBody, invalid_value, missing_parameter
from ..fields import check_metadata
from ..json_encoding import encode_string, escape_line_breaks
from .input_items import ID_PREFIXES, NormalizedItem, normalize_item
from .items import read_items, read_raw_items
from .tools import ResponsesToolRegistry
from .wire import WireItem

CONVERSATION_PREFIX = "conv_"
MAX_ITEMS = 20
"""Maximum items of one request."""

Items = Annotated[list[WireItem], Meta(max_length=MAX_ITEMS)]


class ConversationBody(Struct, frozen=True):
    metadata: dict[str, str] | None = None
    items: Items | None = None


class ConversationItemsBody(Struct, frozen=True):
    items: Items | None = None


class ConversationUpdate(Struct, frozen=True):
    metadata: dict[str, str] | None = None


_CREATION, _ADDITION, _UPDATE = (
    BodySchema(ConversationBody),
    BodySchema(ConversationItemsBody),
    BodySchema(ConversationUpdate),
)


class ConversationItems(Struct, frozen=True):
    """The items and metadata of a request body.

    metadata: as JSON.
    unknown: names of unknown fields.
    """

    items: tuple[NormalizedItem, ...]
    metadata: bytes = b"{}"
    unknown: tuple[str, ...] = ()


def read_create_body(data: bytes) -> ConversationItems:
    """Parse a creation; an empty body creates an empty conversation. Raises RequestError, and nothing else."""
    parsed = ParsedBody(data or b"{}")
    body = parsed.decode(_CREATION)
    unknown = tuple(parsed.find_other_fields(_CREATION.names))
    return ConversationItems(_read_items(body.items or [], parsed), encode_metadata(body.metadata), unknown)


def read_add_body(data: bytes) -> ConversationItems:
    parsed = ParsedBody(data)
    body = parsed.decode(_ADDITION)
    if not body.items:
        raise missing_parameter("items")
    return ConversationItems(_read_items(body.items, parsed), unknown=tuple(parsed.find_other_fields(_ADDITION.names)))


def read_update_body(data: bytes) -> bytes:
    """The new metadata as JSON; null clears it."""
    parsed = ParsedBody(data)
    body = parsed.decode(_UPDATE)
    if "metadata" not in parsed.fields:
        raise missing_parameter("metadata")
    return encode_metadata(body.metadata)


def encode_metadata(metadata: dict[str, str] | None) -> bytes:
    check_metadata(metadata)
    return escape_line_breaks(msgspec.json.encode(metadata or {}))


def get_id_prefix(item: NormalizedItem) -> str:
    """The id prefix of an item that came without an id."""
    return ID_PREFIXES.get(item.type, "item") + "_"


def render_conversation(id: str, created: int, metadata: bytes) -> bytes:
    return b'{"id":%s,"object":"conversation","created_at":%d,"metadata":%s}' % (encode_string(id), created, metadata)


def render_deleted_conversation(id: str) -> bytes:
    return b'{"id":%s,"object":"conversation.deleted","deleted":true}' % encode_string(id)


def _read_items(items: Sequence[WireItem], parsed: ParsedBody) -> tuple[NormalizedItem, ...]:
    # Only for its errors: items are stored as they were sent, and each response that uses them parses them again.
    read_items(items, ResponsesToolRegistry((), []), None, [], path="items")
    for i, item in enumerate(items):
        if item.type == "item_reference" or (item.type is None and item.role is None):
            raise invalid_value(f"items[{i}].type", "a conversation cannot contain item references")
    pairs = zip(items, read_raw_items(items, parsed.fields, "items"), strict=True)
    return tuple(normalize_item(item, fields, f"items[{i}]") for i, (item, fields) in enumerate(pairs))
