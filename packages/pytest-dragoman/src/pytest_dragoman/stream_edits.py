"""Edits of a stream on its way to the client: the same answer in another form that a
server may send, or a malformed one. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Json = dict[str, Any]
MalformedKind = Literal["json", "utf8", "html"]
LATE_USAGE_SECONDS = 0.2
_BYTES_PER_PIECE = 7
_HTML = b"<html><body><h1>502 Bad Gateway</h1></body></html>"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause between two pieces of a stream, in seconds."""

    seconds: float


Piece = bytes | Pause


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream, with its line ends.

    is_sse: a server-sent event; otherwise a line of JSON.
    """

    raw: bytes
    is_sse: bool

    @property
    def data(self) -> Json | None:
        """The JSON object of the event; None if it has none."""
        payload = self.raw
        if self.is_sse:
            lines = self.raw.splitlines()
            payload = b"".join(line[5:] for line in lines if line.startswith(b"data:"))
        try:
            data = json.loads(payload)
        except ValueError:
            return None
        return cast("Json", data) if isinstance(data, dict) else None

    def replace_data(self, data: Json) -> Frame:
        """Return the event with another object."""
        payload = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
        if not self.is_sse:
            return Frame(payload + b"\n", is_sse=False)
        head = b"".join(
            line + b"\n" for line in self.raw.splitlines() if line.startswith(b"event:")
        )
        return Frame(head + b"data: " + payload + b"\n\n", is_sse=True)


class FrameSplitter:
    """Splits the bytes of a stream into events."""

    def __init__(self, *, is_sse: bool) -> None:
        self._is_sse = is_sse
        self._separator = b"\n\n" if is_sse else b"\n"
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        *events, self._buffer = (self._buffer + data).split(self._separator)
        for event in events:
            yield Frame(event + self._separator, self._is_sse)

    def close(self) -> bytes:
        """Return the bytes of an incomplete event."""
        rest = self._buffer
        self._buffer = b""
        return rest


StreamEdit = Callable[[Frame], Iterator[Piece | Frame]]
"""Returns what is sent instead of an event. A Frame is passed to the next edit."""


def build_edits(names: tuple[str, ...]) -> tuple[StreamEdit, ...]:
    """Build edits for one stream, whose state they hold. names: keys of `EDITS`."""
    return tuple(EDITS[name]() for name in names)


def edit_frame(frame: Frame, edits: tuple[StreamEdit, ...]) -> Iterator[Piece]:
    """Apply edits in order."""
    if not edits:
        yield frame.raw
        return
    first, *rest = edits
    for piece in first(frame):
        if isinstance(piece, Frame):
            yield from edit_frame(piece, tuple(rest))
        else:
            yield piece


def find_text(event: Json) -> tuple[Json, str] | None:  # noqa: PLR0911 - one for each API
    """Find the delta of an event: the object and the key that hold a piece of text or of
    a call's arguments; None if it has none.
    """
    data: Any = event
    match data:
        case {"choices": [{"delta": {"content": str()} as delta}, *_]}:
            return delta, "content"
        case {"choices": [{"delta": {"tool_calls": [{"function": function}]}}, *_]}:
            return (function, "arguments") if "name" not in function else None
        case {"object": "text_completion", "choices": [{"text": str()} as choice, *_]}:
            return choice, "text"
        case {"type": "content_block_delta", "delta": delta}:
            keys = ("text", "thinking", "partial_json")
            return next(((delta, key) for key in keys if key in delta), None)
        case {"type": str(kind), "delta": str()} if kind.startswith("response."):
            return data, "delta"
        case {"candidates": [{"content": {"parts": [{"text": str()} as part, *_]}}, *_]}:
            return part, "text"
        # Calls are whole there: a copy of the line would be a second call.
        case {"done": False, "message": {"content": str()} as message} if (
            "tool_calls" not in message
        ):
            return message, "content"
        case {"done": False, "response": str()}:
            return data, "response"
        case _:
            return None


def is_last(data: Json) -> bool:
    """Whether an event ends the answer, or reports its usage."""
    match data:
        case {"choices": [{"finish_reason": str()}, *_]} | {"choices": [], "usage": dict()}:
            return True
        case {"type": "message_delta"} | {"type": "response.completed"} | {"done": True}:
            return True
        case {"candidates": [{"finishReason": str()}, *_]}:
            return True
        case _:
            return False


def _reports_usage(data: Json) -> bool:
    """Whether an event reports the usage of the whole answer."""
    match data:
        case {"choices": []}:
            return data.get("usage") is not None
        case {"choices": [*_]}:
            return False
        case _:
            return is_last(data)


def _insert_empty_deltas() -> StreamEdit:
    inserted = 0

    def edit(frame: Frame) -> Iterator[Piece | Frame]:
        nonlocal inserted
        data = frame.data
        if data is None:
            yield frame
            return
        copy = cast("Json", json.loads(json.dumps(data)))
        place = find_text(copy)
        numbered = "sequence_number" in data
        if place is not None:
            holder, key = place
            holder[key] = ""
            if numbered:
                copy["sequence_number"] += inserted
                inserted += 1
            yield frame.replace_data(copy)
        if numbered:
            data["sequence_number"] += inserted
            frame = frame.replace_data(data)
        yield frame

    return edit


def _repeat_last_events() -> StreamEdit:
    """Repeat the events that end a Chat Completion or a message: their contents are
    cumulative, so that a client may not add them up.
    """

    def edit(frame: Frame) -> Iterator[Piece | Frame]:
        yield frame
        data = frame.data or {}
        if is_last(data) and ("choices" in data or data.get("type") == "message_delta"):
            yield frame

    return edit


def _delay_usage() -> StreamEdit:
    def edit(frame: Frame) -> Iterator[Piece | Frame]:
        if _reports_usage(frame.data or {}):
            yield Pause(LATE_USAGE_SECONDS)
        yield frame

    return edit


def _insert_comments() -> StreamEdit:
    def edit(frame: Frame) -> Iterator[Piece | Frame]:
        if frame.is_sse:
            yield b": keep-alive\n\n"
        yield frame

    return edit


def _end_lines_with_crlf() -> StreamEdit:
    def edit(frame: Frame) -> Iterator[Piece | Frame]:
        yield Frame(frame.raw.replace(b"\n", b"\r\n"), frame.is_sse)

    return edit


def _split_bytes() -> StreamEdit:
    def edit(frame: Frame) -> Iterator[Piece | Frame]:
        for start in range(0, len(frame.raw), _BYTES_PER_PIECE):
            yield frame.raw[start : start + _BYTES_PER_PIECE]
            yield Pause(0)

    return edit


def _break_delta(spoil: Callable[[bytes], bytes]) -> Callable[[], StreamEdit]:
    """Break the first delta."""

    def build() -> StreamEdit:
        is_pending = True

        def edit(frame: Frame) -> Iterator[Piece | Frame]:
            nonlocal is_pending
            if is_pending and find_text(frame.data or {}) is not None:
                is_pending = False
                yield spoil(frame.raw)
            else:
                yield frame

        return edit

    return build


def cut_json(raw: bytes) -> bytes:
    """Cut the JSON of an event in the middle; its line ends remain."""
    text = raw.rstrip(b"\n")
    return text[: len(text) * 3 // 4] + raw[len(text) :]


def spoil_utf8(raw: bytes) -> bytes:
    """Insert a byte that no UTF-8 text has, before the last two quotes."""
    head, quote, tail = raw.rpartition(b'"')
    return head + b"\xff" + quote + tail


def replace_by_html(raw: bytes) -> bytes:
    """Replace a body or an event by the page of a proxy."""
    return _HTML + raw[len(raw.rstrip(b"\n")) :]


SPOILERS: Mapping[str, Callable[[bytes], bytes]] = {
    "json": cut_json,
    "utf8": spoil_utf8,
    "html": replace_by_html,
}
"""By kind, what makes a body or an event malformed."""

MALFORMED_PREFIX = "malformed-"
"""What the names of edits begin with that a client cannot parse."""

EDITS: Mapping[str, Callable[[], StreamEdit]] = {
    "empty-deltas": _insert_empty_deltas,
    "repeated-events": _repeat_last_events,
    "late-usage": _delay_usage,
    "comments": _insert_comments,
    "crlf": _end_lines_with_crlf,
    "split-bytes": _split_bytes,
    **{f"{MALFORMED_PREFIX}{kind}": _break_delta(spoil) for kind, spoil in SPOILERS.items()},
}
"""Edits by name; each call builds one for one stream."""
