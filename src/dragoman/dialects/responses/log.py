"""The events of a response as bytes, one behind the other: how they are counted, cut and ended.

They are those that `ResponsesWriter` makes: whole, numbered from 0, and without the `[DONE]` behind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from msgspec import Raw, Struct

_HEAD = re.compile(rb'event: ([\w.]+)\ndata: \{"type":"[\w.]+","sequence_number":(\d+),')
_ENDS = (b"response.completed", b"response.incomplete", b"response.failed")


def events(log: bytes) -> Iterator[bytes]:
    begin = 0
    while begin < len(log):
        end = log.index(b"\n\n", begin) + 2
        yield log[begin:end]
        begin = end


def number(event: bytes) -> int:
    """Its `sequence_number`; of several events, that of the first."""
    return int(_head(event)[2])


def after(log: bytes, last: int) -> bytes:
    """The events that are numbered higher."""
    if not log or number(log) > last:
        return log
    return b"".join(event for event in events(log) if number(event) > last)


def last_event(log: bytes) -> bytes:
    return log[log.rfind(b"\n\n", 0, -2) + 2 :] if log.count(b"\n\n") > 1 else log


def ends(log: bytes) -> bool:
    """Whether its last event is a response's last one."""
    return bool(log) and _head(last_event(log))[1] in _ENDS


class _Done(Struct, frozen=True):
    item: Raw


def done_items(log: bytes) -> Iterator[bytes]:
    """The items that became done."""
    for event in events(log):
        if _head(event)[1] == b"response.output_item.done":
            yield bytes(msgspec.json.decode(event[event.index(b"\ndata: ") + 7 :], type=_Done).item)


def _head(event: bytes) -> re.Match[bytes]:
    found = _HEAD.match(event)
    if found is None:
        raise ValueError(f"not an event of a response: {event[:80]!r}")
    return found
