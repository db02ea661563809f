"""The events of a response, concatenated as bytes: reads, splits and ends the log.

The events are those of `ResponsesWriter`: complete, numbered from 0, and without the final `[DONE]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

_EVENT_HEAD = re.compile(rb'event: ([\w.]+)\ndata: \{"type":"[\w.]+","sequence_number":(\d+),')
_TERMINAL_EVENTS = (b"response.completed", b"response.incomplete", b"response.failed")


def split_events(log: bytes) -> Iterator[bytes]:
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
    match = _EVENT_HEAD.match(event)
    if match is None:
        raise ValueError(f"not an event of a response: {event[:80]!r}")
    return match
