"""The bodies of the conversation routes. Their items are those of an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ..field_errors import invalid_value, missing_parameter
from ..generation_fields import check_metadata
from ..interfaces import ReaderOptions
from ..json_encoding import encode_string, escape_line_breaks
from ..request_body import BodySchema, ParsedBody
from .input_items import ID_PREFIXES, InputItem, build_input_item
from .item_reader import ItemReader, read_raw_items
from .tool_registry import ResponsesToolRegistry
from .turn_builder import TurnBuilder
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


_CREATION = BodySchema(ConversationBody)


_ADDITION = BodySchema(ConversationItemsBody)


_UPDATE = BodySchema(ConversationUpdate)


class ConversationItems(Struct, frozen=True):
    """The items and metadata of a request body.

    metadata: the metadata as JSON.
    unknown: names of unknown fields.
    """

    items: tuple[InputItem, ...]
    metadata: bytes = b"{}"
    unknown: tuple[str, ...] = ()


def read_create_body(data: bytes, options: ReaderOptions) -> ConversationItems:
    """Parse a creation; an empty body creates an empty conversation. Raises
    RequestError, and nothing else.
    """
    parsed = ParsedBody(data or b"{}")
    body = parsed.decode(_CREATION)
    unknown = tuple(parsed.find_other_fields(_CREATION.names))
    items = _read_items(body.items or [], parsed, options)
    return ConversationItems(items, encode_metadata(body.metadata), unknown)


def read_add_body(data: bytes, options: ReaderOptions) -> ConversationItems:
    parsed = ParsedBody(data)
    body = parsed.decode(_ADDITION)
    if not body.items:
        raise missing_parameter("items")
    items = _read_items(body.items, parsed, options)
    return ConversationItems(items, unknown=tuple(parsed.find_other_fields(_ADDITION.names)))


def read_update_body(data: bytes) -> bytes:
    """Parse an update, and return the new metadata as JSON; null clears it."""
    parsed = ParsedBody(data)
    body = parsed.decode(_UPDATE)
    if "metadata" not in parsed.fields:
        raise missing_parameter("metadata")
    return encode_metadata(body.metadata)


def encode_metadata(metadata: dict[str, str] | None) -> bytes:
    check_metadata(metadata)
    return escape_line_breaks(msgspec.json.encode(metadata or {}))


def get_id_prefix(item: InputItem) -> str:
    """Return the prefix of the id to generate for an item that has none."""
    return ID_PREFIXES.get(item.type, "item") + "_"


def render_conversation(id: str, created: int, metadata: bytes) -> bytes:
    return b'{"id":%s,"object":"conversation","created_at":%d,"metadata":%s}' % (
        encode_string(id),
        created,
        metadata,
    )


def render_deleted_conversation(id: str) -> bytes:
    return b'{"id":%s,"object":"conversation.deleted","deleted":true}' % encode_string(id)


def _read_items(
    items: Sequence[WireItem], parsed: ParsedBody, options: ReaderOptions
) -> tuple[InputItem, ...]:
    # Only for its errors: items are stored as they were sent, and each response that
    # uses them parses them again.
    reader = ItemReader(options.sealing_key, [], keeps_seal=options.keeps_seal)
    turns = TurnBuilder(ResponsesToolRegistry((), []), [])
    for i, item in enumerate(items):
        turns.add(reader.read(item, f"items[{i}]"), f"items[{i}]")
    for i, item in enumerate(items):
        if item.type == "item_reference" or (item.type is None and item.role is None):
            raise invalid_value(f"items[{i}].type", "a conversation cannot contain item references")
    pairs = zip(items, read_raw_items(items, parsed.fields, "items"), strict=True)
    return tuple(
        build_input_item(item, fields, None, f"items[{i}]")
        for i, (item, fields) in enumerate(pairs)
    )
