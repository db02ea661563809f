"""A stored response: the stored format, and how the server finalizes an interrupted one. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct, field

from ...core.errors import DragomanError
from . import event_log as logged
from .errors import render_error_fields, render_failure

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
    fields["output"] = Raw(b"[%s]" % b",".join(logged.list_done_items(log)))
    fields["error"] = Raw(b"null" if error is None else render_failure(error))
    response = msgspec.json.encode(fields)
    # A client that reconnects asks for what follows a number, so the numbers of an ended log must go on without a gap.
    number = logged.read_sequence_number(logged.get_last_event(log)) + 1
    events = b"" if error is None else _render_event(b"error", number, render_error_fields(error))
    events += _render_event(b"response." + name, number + (1 if events else 0), b'"response":' + response)
    return FinalizedResponse(status, response, events, number)


def _render_event(name: bytes, number: int, fields: bytes) -> bytes:
    return b'event: %s\ndata: {"type":"%s","sequence_number":%d,%s}\n\n' % (name, name, number, fields)
