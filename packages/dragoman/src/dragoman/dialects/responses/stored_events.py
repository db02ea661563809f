"""The events of a background response, as they are stored with it.

They are all that `ResponsesWriter` has rendered, numbered from 0, without the final
`[DONE]`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

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
    return msgspec.json.decode(body, type=list[StoredEvent])
