"""A stored response: the stored format, its event log, and how the server finalizes an interrupted one. Knows no store.

The log is the events of `ResponsesWriter`, concatenated as bytes: complete, numbered from 0, and without the final
`[DONE]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field

from ...core.errors import DragomanError
from ..body import BodySchema, ParsedBody, invalid_value, missing_parameter
from ..fields import check_metadata
from ..json_encoding import encode_string, escape_line_breaks
from .errors import render_error_fields, render_failure
from .input_items import ID_PREFIXES, NormalizedItem, normalize_item
from .items import read_items, read_raw_items
from .tools import ResponsesToolRegistry
from .wire import WireItem

_EVENT_HEAD = re.compile(rb'event: ([\w.]+)\ndata: \{"type":"[\w.]+","sequence_number":(\d+),')
_TERMINAL_EVENTS = (b"response.completed", b"response.incomplete", b"response.failed")


def split_events(log: bytes) -> Iterator[bytes]:
    # A blank line always ends an event: JSON text contains no raw line break.
    begin = 0
    while begin < len(log):
        end = log.index(b"\n\n", begin) + 2
        yield log[begin:end]
        begin = end


def read_sequence_number(event: bytes) -> int:
    """The `sequence_number` of the first event."""
    return int(_match_head(event)[2])


def skip_through(log: bytes, last: int) -> bytes:
    """The events with higher sequence numbers."""
    # A log that is wanted as a whole is neither split nor copied.
    if not log or read_sequence_number(log) > last:
        return log
    return b"".join(event for event in split_events(log) if read_sequence_number(event) > last)


def get_last_event(log: bytes) -> bytes:
    return log[log.rfind(b"\n\n", 0, -2) + 2 :] if log.count(b"\n\n") > 1 else log


def has_ended(log: bytes) -> bool:
    """Whether the last event is a terminal one."""
    return bool(log) and _match_head(get_last_event(log))[1] in _TERMINAL_EVENTS


class _DoneEvent(Struct, frozen=True):
    item: Raw


def list_done_items(log: bytes) -> Iterator[bytes]:
    """The items of all `output_item.done` events."""
    for event in split_events(log):
        if _match_head(event)[1] == b"response.output_item.done":
            yield bytes(msgspec.json.decode(event[event.index(b"\ndata: ") + 7 :], type=_DoneEvent).item)


def _match_head(event: bytes) -> re.Match[bytes]:
    # The writer puts these fields first in every event, so a log is searched without decoding its JSON.
    match = _EVENT_HEAD.match(event)
    if match is None:
        raise ValueError(f"not an event of a response: {event[:80]!r}")
    return match


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
    before: items that precede those and are in no stored response.
    conversation, upto: the same by reference: the conversation's items up to that position; None is no item.
    sampled_ids: the token ids of its output, see `prompts.token_replay`.
    """

    object: Raw
    input: tuple[Raw, ...] = ()
    before: tuple[Raw, ...] = ()
    conversation: str | None = None
    upto: int | None = None
    # The encoded name is that of stores written by earlier versions.
    sampled_ids: tuple[int, ...] = field(default=(), name="said")

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def summarize(self) -> ResponseSummary:
        return msgspec.json.decode(self.object, type=ResponseSummary)

    def list_items(self) -> tuple[bytes, ...]:
        """The items that it adds to a conversation: its input and its output."""
        return (*map(bytes, self.input), *self.summarize().list_output())

    def with_object(self, response: bytes) -> StoredResponse:
        return msgspec.structs.replace(self, object=Raw(response))


def read_stored_response(body: bytes) -> StoredResponse:
    return msgspec.json.decode(body, type=StoredResponse)


def to_raw(items: Sequence[bytes]) -> tuple[Raw, ...]:
    return tuple(map(Raw, items))


class FinalizedResponse(Struct, frozen=True):
    """The end of a response that its own writer could not finish.

    events: the last events.
    first_number: the sequence number of the first of them.
    """

    status: str
    response: bytes
    events: bytes
    first_number: int


def finalize(stored: StoredResponse, log: bytes, error: DragomanError | None) -> FinalizedResponse:
    """End a running response.

    log: all its events so far.
    error: why it ended; None if it was cancelled.

    Its output is the items that were done. Clients know no event for cancellation, so it ends with `incomplete`.
    """
    status, name = ("cancelled", b"incomplete") if error is None else ("failed", b"failed")
    fields = msgspec.json.decode(stored.object, type=dict[str, Raw])
    fields["status"] = Raw(b'"%s"' % status.encode())
    fields["output"] = Raw(b"[%s]" % b",".join(list_done_items(log)))
    fields["error"] = Raw(b"null" if error is None else render_failure(error))
    response = msgspec.json.encode(fields)
    # A client that reconnects asks for what follows a number, so the numbers of an ended log must go on without a gap.
    number = read_sequence_number(get_last_event(log)) + 1
    events = b"" if error is None else _render_event(b"error", number, render_error_fields(error))
    events += _render_event(b"response." + name, number + (1 if events else 0), b'"response":' + response)
    return FinalizedResponse(status, response, events, number)


def _render_event(name: bytes, number: int, fields: bytes) -> bytes:
    return b'event: %s\ndata: {"type":"%s","sequence_number":%d,%s}\n\n' % (name, name, number, fields)


# Request and response bodies of conversations. A conversation contains items as in Responses.

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
