"""A streamed body as events: driven by the consumer of the engine's stream, or by a
callback of the transport.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from dragoman_http import InvalidResponse, SseDecoder

from ...core.engine import EventDelivery
from ...core.errors import EngineError
from ...core.events import (
    Event,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from .request_warnings import RequestWarnings

log = logging.getLogger(__name__)


_DELTAS = frozenset({TextDelta, ReasoningDelta, RefusalDelta, ToolCallStart, ToolCallDelta})


class BodyConsumer(Protocol):
    """The part of `HttpResponse` that `EventStream` uses."""

    def interrupt(self) -> None:
        """Resume the task that waits for the next piece of the body, although none has
        arrived.
        """
        ...


class StreamReader(Protocol):
    """Converts the events of one upstream API to a valid stream of this server's
    events.

    has_started: whether `Started` has been returned.
    is_done: whether the upstream's last event has been read.
    warnings: warnings for the client, sent with `Started`.
    """

    has_started: bool
    is_done: bool
    warnings: RequestWarnings

    def read(self, data: bytes, name: str = "") -> list[Event]:
        """Read the data of one event. Raises RequestError if the upstream rejects the
        request, EngineError if it fails or the event is invalid.

        name: the event's name in the stream, which some servers do not repeat in the
            data.
        """
        ...

    def read_whole(self, body: bytes) -> list[Event]:
        """Read a response that is not streamed. Raises as `read`."""
        ...

    def close(self) -> list[Event]:
        """Finish the stream. Raises EngineError if the response is incomplete."""
        ...


class EventStream:
    """Converts the pieces of a streamed body to events.

    failure: the exception that the consumer has to raise after the events of `feed`;
        None while there is none.
    """

    __slots__ = (
        "_backlog",
        "_body",
        "_deliver",
        "_early_warnings",
        "_reader",
        "_sse",
        "failure",
    )

    def __init__(
        self,
        reader: StreamReader,
        body: BodyConsumer,
        deliver: EventDelivery | None,
    ) -> None:
        self._reader = reader
        self._body = body
        self._deliver = deliver
        self._sse = SseDecoder()
        self._backlog: list[Event] = []
        self._early_warnings = b""
        self.failure: Exception | None = None

    @property
    def is_done(self) -> bool:
        """Whether the upstream's last event has been read."""
        return self._reader.is_done

    @property
    def late_warnings(self) -> tuple[str, ...]:
        """The warnings that only the end of the stream has."""
        if self._sse.warnings == self._early_warnings:
            return ()
        known = self._reader.warnings
        # They repeat those of the header, which separates warnings in the same way.
        return tuple(
            warning
            for warning in known.rename(self._decode_warnings())
            if not set(warning.split("; ")) <= set(known.all)
        )

    def feed(self, piece: bytes) -> list[Event]:
        """Feed a piece of the body, and return its events after those that `receive`
        left behind.

        piece: b"" to fetch only the events left behind.
        """
        events = self._backlog
        self._backlog = []
        reader = self._reader
        sse = self._sse
        try:
            pieces = sse.feed(piece)
            if sse.warnings and not reader.has_started:
                self._early_warnings = sse.warnings
                if warnings := self._decode_warnings():
                    reader.warnings.report(warnings)
            if len(pieces) == 1 and not events:
                return reader.read(pieces[0], sse.names[0])
            for data, name in zip(pieces, sse.names, strict=True):
                events += reader.read(data, name)
                if reader.is_done:
                    break
        except InvalidResponse as error:
            self.failure = EngineError(f"The upstream's stream cannot be read: {error}.")
        except Exception as error:
            self.failure = error
        return events

    def end(self) -> list[Event]:
        """Return the events of a last event that no blank line ends."""
        return self.feed(b"\n\n")

    def receive(self, piece: bytes) -> bool:
        """Deliver the events of a piece; return whether the piece was consumed.

        Only deltas are delivered. All other events, and those that cannot be delivered
        now, are left for the next `feed`.
        """
        if self._deliver is None:
            return False
        events = self.feed(piece)
        for event in events:
            if type(event) not in _DELTAS:
                are_deltas = False
                break
        else:
            are_deltas = True
        is_left = (
            # These need the coroutine that reads the body: a callback of the transport
            # can neither raise nor await.
            not are_deltas or self.failure is not None or self._reader.is_done
        )
        if is_left or (events and not self._deliver(events)):
            self._backlog = events
            self._body.interrupt()
        return True

    def _decode_warnings(self) -> tuple[str, ...]:
        """Decode the upstream's warnings. Returns () for an invalid array, since the
        header contains the warnings too.
        """
        try:
            return msgspec.json.decode(self._sse.warnings, type=tuple[str, ...])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("an upstream's warnings cannot be parsed: %s", error)
            return ()


def read_body(reader: StreamReader, body: bytes) -> list[Event]:
    """Read a body that is said to be JSON; some servers say so of a stream."""
    if body.lstrip().startswith((b"{", b"[")):
        return reader.read_whole(body)
    # The whole body has a limit already.
    decoder = SseDecoder(len(body) + 2)
    events: list[Event] = []
    pieces = decoder.feed(body + b"\n\n")
    for data, name in zip(pieces, decoder.names, strict=True):
        if not reader.is_done:
            events += reader.read(data, name)
    return events
