"""Stored responses, the end of an interrupted response, and the bodies of the
conversation routes.

The events of a background response are stored with it: all that `ResponsesWriter` has
rendered, numbered from 0, without the final `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from ...core.errors import DragomanError
from ..base import ReaderOptions
from ..body import BodySchema, ParsedBody, invalid_value, missing_parameter
from ..fields import check_metadata
from ..json_encoding import encode_string, escape_line_breaks
from .errors import render_error_fields, render_failure
from .input_items import ID_PREFIXES, InputItem, build_input_item
from .items import ItemReader, TurnBuilder, read_raw_items
from .tools import ResponsesToolRegistry
from .wire import WireItem

_TERMINAL_TYPES = frozenset({"response.completed", "response.incomplete", "response.failed"})


class StoredEvent(Struct, frozen=True, array_like=True):
    """One event of a background response, as it is stored.

    number: its sequence number.
    type: such as `response.completed`.
    data: its JSON object, byte for byte as clients receive it.
    """

    number: int
    type: str
    data: Raw

    @property
    def is_terminal(self) -> bool:
        return self.type in _TERMINAL_TYPES

    def render(self) -> bytes:
        """Render the server-sent event."""
        return b"event: %s\ndata: %s\n\n" % (self.type.encode(), self.data)


def build_event(number: int, type: bytes, fields: bytes) -> StoredEvent:
    """Build an event. fields: those after `sequence_number`, as JSON without braces."""
    data = Raw(b'{"type":"%s","sequence_number":%d,%s}' % (type, number, fields))
    return StoredEvent(number, type.decode(), data)


def encode_events(events: Sequence[StoredEvent]) -> bytes:
    """Return the body of one entry in the store: events that were stored together."""
    return msgspec.json.encode(events)


def read_events(body: bytes) -> list[StoredEvent]:
    """Decode an entry's body."""
    # Before 0.2 an entry contained server-sent events as text. Support for it can be
    # removed in 0.3.
    if body.startswith(b"event:"):
        datas = [event.partition(b"\ndata: ")[2] for event in body.split(b"\n\n")[:-1]]
        heads = [msgspec.json.decode(data, type=_EventHead) for data in datas]
        pairs = zip(heads, datas, strict=True)
        return [StoredEvent(head.sequence_number, head.type, Raw(data)) for head, data in pairs]
    return msgspec.json.decode(body, type=list[StoredEvent])


class _EventHead(Struct, frozen=True):
    type: str
    sequence_number: int


class _DoneEvent(Struct, frozen=True):
    item: Raw


RUNNING_STATUSES = frozenset({"queued", "in_progress"})
"""The statuses of a response that is still running."""
CONTINUABLE_STATUSES = frozenset({"completed", "incomplete"})
"""The statuses of a response that can be continued."""


class ResponseSummary(Struct, frozen=True):
    """The fields of a response object that the server reads."""

    status: str
    output: tuple[Raw, ...] = ()
    background: bool = False
    id: str = ""

    def list_output(self) -> tuple[bytes, ...]:
        return tuple(map(bytes, self.output))


class StoredResponse(Struct, frozen=True, kw_only=True):
    """The body of a stored response.

    object: the response object of its last event.
    input: its own items, as `/input_items` lists them.
    before: items that precede `input` and are in no stored response.
    conversation, upto: the preceding items by reference, as a conversation's items up
    to a position; None without a conversation.
    sampled_ids: the token ids of its output, see `prompts.token_replay`.
    """

    object: Raw
    input: tuple[Raw, ...] = ()
    before: tuple[Raw, ...] = ()
    conversation: str | None = None
    upto: int | None = None
    sampled_ids: tuple[int, ...] = ()
    # The name of `sampled_ids` before 0.2. Support for it can be removed in 0.3.
    former_sampled_ids: tuple[int, ...] | UnsetType = field(default=UNSET, name="said")

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def summarize(self) -> ResponseSummary:
        return msgspec.json.decode(self.object, type=ResponseSummary)

    def list_items(self) -> tuple[bytes, ...]:
        """Return the items that it adds to a conversation: its input and its output."""
        return (*map(bytes, self.input), *self.summarize().list_output())

    def with_object(self, response: bytes) -> StoredResponse:
        return msgspec.structs.replace(self, object=Raw(response))


def read_stored_response(body: bytes) -> StoredResponse:
    stored = msgspec.json.decode(body, type=StoredResponse)
    if stored.former_sampled_ids is UNSET:
        return stored
    return msgspec.structs.replace(
        stored, sampled_ids=stored.former_sampled_ids, former_sampled_ids=UNSET
    )


def to_raw(items: Sequence[bytes]) -> tuple[Raw, ...]:
    return tuple(map(Raw, items))


class FinalizedResponse(Struct, frozen=True):
    """The end of a response that its own writer could not finish.

    status: `failed` or `cancelled`.
    response: the response object.
    events: the last events.
    """

    status: str
    response: bytes
    events: tuple[StoredEvent, ...]


def finalize(
    stored: StoredResponse, events: Sequence[StoredEvent], error: DragomanError | None
) -> FinalizedResponse:
    """End a running response.

    events: all its events so far.
    error: why it ended; None if it was cancelled.

    The output is the items that were done. The API has no event for cancellation: a
    cancelled response ends with `response.incomplete`.
    """
    status, end_type = (
        ("cancelled", b"response.incomplete") if error is None else ("failed", b"response.failed")
    )
    done_items = [
        bytes(msgspec.json.decode(event.data, type=_DoneEvent).item)
        for event in events
        if event.type == "response.output_item.done"
    ]
    # Not decoded further: the other fields must stay the bytes that clients have
    # received.
    fields = msgspec.json.decode(stored.object, type=dict[str, Raw])
    fields["status"] = Raw(b'"%s"' % status.encode())
    fields["output"] = Raw(b"[%s]" % b",".join(done_items))
    fields["error"] = Raw(b"null" if error is None else render_failure(error))
    response = msgspec.json.encode(fields)
    # A client that reconnects asks for what follows a number, so the numbers of the
    # last events go on without a gap.
    number = events[-1].number + 1
    errors = () if error is None else (build_event(number, b"error", render_error_fields(error)),)
    end = build_event(number + len(errors), end_type, b'"response":' + response)
    return FinalizedResponse(status, response, (*errors, end))


# Conversations: their request and response bodies. Their items are those of an input.

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
    turns = TurnBuilder(ResponsesToolRegistry((), []))
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
