"""Stored responses, with the end of an interrupted one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ...core.errors import DragomanError
from .errors import render_error_fields, render_failure
from .stored_events import StoredEvent, build_event


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
    return msgspec.json.decode(body, type=StoredResponse)


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
