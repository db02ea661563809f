"""The events of a streamed body, for two drivers: the consumer of the engine's stream, and the transport's callback."""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from ...core.engine import EventReceiver
from ...core.errors import EngineError
from ...core.events import Event, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta, ToolCallStart
from .chunk_reader import ChunkReader
from .sse import SseDecoder
from .wire import UpstreamChunk

log = logging.getLogger(__name__)

_DONE = b"[DONE]"
_DELTAS = frozenset({TextDelta, ReasoningDelta, RefusalDelta, ToolCallStart, ToolCallDelta})
_decode = msgspec.json.Decoder(UpstreamChunk).decode


class BodyConsumer(Protocol):
    """The interface of a response that a stream uses."""

    def interrupt(self) -> None:
        """Resume the consumer, which finds events although no piece has come."""
        ...


class EventStream:
    """Reads the pieces of a body.

    is_done: the upstream's [DONE] has come.
    failure: what the consumer has to raise, after the events of `feed`.
    """

    __slots__ = ("_backlog", "_body", "_reader", "_receiver", "_sse", "failure", "is_done")

    def __init__(self, reader: ChunkReader, body: BodyConsumer, receiver: EventReceiver | None) -> None:
        self._reader, self._body, self._receiver = reader, body, receiver
        self._sse = SseDecoder()
        self._backlog: list[Event] = []
        self.is_done = False
        self.failure: Exception | None = None

    def feed(self, piece: bytes) -> list[Event]:
        """Feed a piece of the body, or b"" for the events that `receive` has left."""
        events, self._backlog = self._backlog, []
        try:
            pieces = self._sse.feed(piece)
            if self._sse.warnings and not self._reader.has_started:
                self._reader.warnings = decode_warnings(self._sse.warnings) or self._reader.warnings
            for data in pieces:
                if data == _DONE:
                    self.is_done = True
                    break
                events += self._reader.feed(decode_chunk(data))
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
        if self.is_done or self.failure is not None or not are_deltas:
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


def decode_chunk(data: bytes) -> UpstreamChunk:
    """Decode a chunk, or a response that is not streamed. Raises EngineError."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        log.warning("an upstream's chunk cannot be parsed: %s", error)
        raise EngineError("The upstream sent an invalid chunk.") from None
