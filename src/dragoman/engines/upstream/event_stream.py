"""The events of a streamed body, for two drivers: the consumer of the engine's stream, and the transport's callback.

Incremental decoder of server-sent events. Pure.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from ...core.engine import EventReceiver
from ...core.errors import EngineError
from ...core.events import Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta, ToolCallStart

MAX_EVENT = 16 * 1024 * 1024
"""Limit of one event, bytes. A chunk is small, but the first may list the ids of a long prompt."""
_WARNINGS_COMMENT = b": dragoman_warnings "


class SseDecoder:
    """Decodes bytes to the data of complete events. Names, ids and other comments than its warnings are skipped.

    warnings: the JSON array of the last comment with a server's warnings; empty before.

    Raises EngineError for an event above the limit. The work is linear in the bytes, also for one byte at a time.
    """

    def __init__(self, max_event: int = MAX_EVENT) -> None:
        self._max_event = max_event
        self._partial_line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self.warnings = b""

    def feed(self, data: bytes) -> list[bytes]:
        is_one_event = data.startswith(b"data: ") and data.endswith(b"\n\n") and data.find(b"\n") == len(data) - 2
        # The common case: one whole event of one line. A CR ends lines too.
        if is_one_event and not self._size and not self._after_cr and b"\r" not in data:
            return [data[6:-2]]
        events: list[bytes] = []
        rest = data[1:] if self._after_cr and data.startswith(b"\n") else data
        self._after_cr = data.endswith(b"\r")
        # SSE lines end with CR, LF or CRLF only. `bytes.splitlines` splits at these; `str.splitlines` at others too.
        for line in rest.splitlines(keepends=True):
            self._size += len(line)
            if self._size > self._max_event:
                raise EngineError(f"The upstream sent an event of more than {self._max_event} bytes.")
            if line.endswith((b"\n", b"\r")):
                self._feed_line(b"".join((*self._partial_line, line.rstrip(b"\r\n"))), events)
                self._partial_line.clear()
            else:
                self._partial_line.append(line)
        return events

    def _feed_line(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data = []
            self._size = 0
        elif line.startswith(_WARNINGS_COMMENT):
            self.warnings = line[len(_WARNINGS_COMMENT) :]


log = logging.getLogger(__name__)

_DELTAS = frozenset({TextDelta, ReasoningDelta, RefusalDelta, ToolCallStart, ToolCallDelta})


class BodyConsumer(Protocol):
    """The interface of a response that a stream uses."""

    def interrupt(self) -> None:
        """Resume the consumer, which finds events although no piece has come."""
        ...


class StreamReader(Protocol):
    """Reads the events of one wire as a valid stream of ours.

    has_started: `Started` has been returned.
    is_done: the last event of the wire has come.
    warnings: those for the client that precede the answer.
    """

    has_started: bool
    is_done: bool
    warnings: tuple[str, ...]

    def read(self, data: bytes) -> list[Event]:
        """Read the data of one event. Raises RequestError if the upstream rejects the request, EngineError if it
        fails or the event is invalid."""
        ...

    def read_whole(self, body: bytes) -> list[Event]:
        """Read a response that is not streamed. Raises as `read`."""
        ...

    def close(self) -> list[Event]:
        """Finish the stream. Raises EngineError if the response is incomplete."""
        ...


class EventStream:
    """Reads the pieces of a body.

    failure: what the consumer has to raise, after the events of `feed`.
    """

    __slots__ = ("_backlog", "_body", "_reader", "_receiver", "_sse", "failure")

    def __init__(self, reader: StreamReader, body: BodyConsumer, receiver: EventReceiver | None) -> None:
        self._reader, self._body, self._receiver = reader, body, receiver
        self._sse = SseDecoder()
        self._backlog: list[Event] = []
        self.failure: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether the upstream's last event has come."""
        return self._reader.is_done

    def feed(self, piece: bytes) -> list[Event]:
        """Feed a piece of the body, or b"" for the events that `receive` has left."""
        events, self._backlog = self._backlog, []
        try:
            pieces = self._sse.feed(piece)
            if self._sse.warnings and not self._reader.has_started:
                self._reader.warnings = decode_warnings(self._sse.warnings) or self._reader.warnings
            for data in pieces:
                events += self._reader.read(data)
                if self._reader.is_done:
                    break
        except Exception as error:
            self.failure = error
        return events

    def receive(self, piece: bytes) -> bool:
        """Hand the events of a piece to the receiver, if that is ready and they are deltas; else leave them."""
        receiver = self._receiver
        if receiver is None or not receiver.is_ready:
            return False
        events = self.feed(piece)
        are_deltas = type(events[0]) in _DELTAS if len(events) == 1 else all(type(event) in _DELTAS for event in events)
        # The rest is left to the coroutine that reads the body: a callback of the transport can neither raise nor
        # await.
        if self._reader.is_done or self.failure is not None or not are_deltas:
            self._backlog = events
            self._body.interrupt()
        elif events:
            receiver.receive(events)
        return True


def decode_warnings(array: bytes) -> tuple[str, ...]:
    """Decode a server's warnings. Empty for an invalid array: the header has them too."""
    try:
        return msgspec.json.decode(array, type=tuple[str, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("an upstream's warnings cannot be parsed: %s", error)
        return ()
