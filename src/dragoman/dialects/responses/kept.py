"""A stored response: what is kept of it, and what becomes of one that is ended from outside. Knows no store."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ...core.errors import DragomanError
from . import log as logged
from .errors import error_fields, failed_by

RUNNING = frozenset({"queued", "in_progress"})
"""The states of a response that somebody works on."""
CONTINUABLE = frozenset({"completed", "incomplete"})
"""The states of a response whose conversation can go on."""


class Told(Struct, frozen=True):
    """What a response object says that the server wants to know."""

    status: str
    output: tuple[Raw, ...] = ()
    background: bool = False
    id: str = ""

    def items(self) -> tuple[bytes, ...]:
        return tuple(map(bytes, self.output))


class Kept(Struct, frozen=True, kw_only=True):
    """object: as its last event carried it. input: its own items, as `/input_items` lists them.

    before: items that come before those where no stored response has them. conversation, upto: the same by reference,
    the conversation's items up to that position; None is no item. said: the ids of what was sampled, see
    `prompts.spelling`.
    """

    object: Raw
    input: tuple[Raw, ...] = ()
    before: tuple[Raw, ...] = ()
    conversation: str | None = None
    upto: int | None = None
    said: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def told(self) -> Told:
        return msgspec.json.decode(self.object, type=Told)

    def items(self) -> tuple[bytes, ...]:
        """What it adds to a conversation: its input and its output."""
        return (*map(bytes, self.input), *self.told().items())

    def with_object(self, whole: bytes) -> Kept:
        return msgspec.structs.replace(self, object=Raw(whole))


def read_kept(body: bytes) -> Kept:
    return msgspec.json.decode(body, type=Kept)


def raws(items: Sequence[bytes]) -> tuple[Raw, ...]:
    return tuple(map(Raw, items))


class Settled(Struct, frozen=True):
    """How a response ended that its own writer could not end. events: the last ones, the first of them numbered
    `number`.
    """

    status: str
    whole: bytes
    events: bytes
    number: int


def settled(kept: Kept, log: bytes, error: DragomanError | None) -> Settled:
    """End a response that was running. log: all its events so far. error: what ended it; None if it was cancelled.

    Its output is what was done. There is no event for being cancelled that clients know: it is an incomplete one.
    """
    status, name = ("cancelled", b"incomplete") if error is None else ("failed", b"failed")
    fields = msgspec.json.decode(kept.object, type=dict[str, Raw])
    fields["status"] = Raw(b'"%s"' % status.encode())
    fields["output"] = Raw(b"[%s]" % b",".join(logged.done_items(log)))
    fields["error"] = Raw(b"null" if error is None else failed_by(error))
    whole = msgspec.json.encode(fields)
    number = logged.number(logged.last_event(log)) + 1
    said = b"" if error is None else _event(b"error", number, error_fields(error))
    said += _event(b"response." + name, number + (1 if said else 0), b'"response":' + whole)
    return Settled(status, whole, said, number)


def _event(name: bytes, number: int, fields: bytes) -> bytes:
    return b'event: %s\ndata: {"type":"%s","sequence_number":%d,%s}\n\n' % (name, name, number, fields)
