"""The responder of a generation, streamed or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import Event, Finished, Started
from ..core.field_names import CORE_NAMES, FieldNames
from ..core.reply import ReplyBuilder
from ..dialects.interfaces import Writer
from ..pipeline.driver import BatchStream
from .client_warnings import add_warnings
from .responder import RawHeaders, Responder, ResponseStart
from .stream_keepalive import StreamMonitor


class RenderedWarnings(Struct, frozen=True):
    """The warnings of a response.

    headers: the headers of the response; none if they have been sent.
    body: a JSON array for the body; empty for none.
    """

    headers: RawHeaders
    body: bytes


WarningRenderer = Callable[[tuple[str, ...], RawHeaders | None], RenderedWarnings]
"""Renders the warnings of a call with those of its engine.

Called with all warnings that the engine has reported, and the headers, or None if they
have been sent, so that only the body is left. A stream holds it to its end: it must
hold little.
"""


class GenerationResponder(Responder):
    """The response to a generation, streamed or not.

    batches: the response; each batch becomes one write of a stream.
    writer: renders the events in the client's dialect.
    warnings: a JSON array for the body; empty for none. A stream ends with them in a
        comment, which clients skip.
    render_warnings: called when the engine has reported warnings, in its `Started` or
        `Finished` event. None if the response cannot carry them.
    field_names: the client's names for the fields in errors.
    """

    __slots__ = (
        "_awaits_start",
        "_batches",
        "_engine_warnings",
        "_field_names",
        "_render_warnings",
        "_warnings",
        "_writer",
    )

    def __init__(
        self,
        batches: BatchStream,
        writer: Writer,
        response_start: ResponseStart,
        monitor: StreamMonitor,
        *,
        stream: bool,
        warnings: bytes = b"",
        render_warnings: WarningRenderer | None = None,
        field_names: FieldNames = CORE_NAMES,
    ) -> None:
        super().__init__(batches, writer, response_start, monitor, stream=stream)
        self._batches = batches
        self._writer = writer
        self._warnings = warnings
        self._render_warnings = render_warnings
        self._awaits_start = render_warnings is not None
        self._field_names = field_names
        self._engine_warnings: tuple[str, ...] = ()

    async def _fail(self, error: DragomanError) -> None:
        self._field_names.translate(error)
        await super()._fail(error)

    def _produce(self) -> Awaitable[None]:
        return self._stream() if self._is_stream else self._collect()

    @property
    def is_ready(self) -> bool:
        """Implements `ResponseSink`: whether the engine has started, and the client reads fast
        enough.

        Headers that were sent early, before a slow engine has started, do not count:
        its warnings are still to come.
        """
        return self._direct is not None and not self._awaits_start and self._direct.can_write

    def render(self, batch: list[Event]) -> bytes:
        if self._awaits_start or type(batch[-1]) is Finished:
            self.read_warnings(batch)
        return b"".join([self._writer.feed(event) for event in batch])

    def write(self, batch: list[Event]) -> None:
        # The engine's warnings come at the start and at the end, which the task sends.
        feed = self._writer.feed
        # Nearly always a single event.
        chunk = feed(batch[0]) if len(batch) == 1 else b"".join([feed(event) for event in batch])
        if chunk and self._direct is not None:
            self._ticks = 0
            self._direct.write(chunk)

    async def send(self, chunk: bytes) -> None:
        if self._response_start is not None:
            await self._send_headers()
        if chunk:
            # Inlined `_write`: saves a coroutine per token.
            self._ticks = 0
            self._is_writing = True
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._is_writing = False

    async def _stream(self) -> None:
        """Write each batch of events as one chunk."""
        await self._batches.deliver(self, can_write=self._direct is not None)
        comment = b": dragoman_warnings %s\n\n" % self._warnings if self._warnings else b""
        await self._write(comment + self._writer.end, more_body=False)

    def read_warnings(self, batch: list[Event]) -> None:
        """Add the engine's warnings, which are in the `Started` event of the first
        batch and in `Finished`, to those of the call.
        """
        self._awaits_start = False
        warnings = self._engine_warnings
        for event in batch:
            if isinstance(event, Started | Finished):
                warnings += event.warnings
        if warnings == self._engine_warnings or self._render_warnings is None:
            return
        self._engine_warnings = warnings
        start = self._response_start
        rendered = self._render_warnings(warnings, None if start is None else start.headers)
        self._warnings = rendered.body
        if start is not None:
            self._response_start = msgspec.structs.replace(start, headers=rendered.headers)

    async def _collect(self) -> None:
        collector = _ReplyCollector(self)
        await self._batches.deliver(collector, can_write=True, is_whole=True)
        assert self._response_start is not None
        body = add_warnings(self._writer.render_full(collector.builder.build()), self._warnings)
        await self._send_whole(200, self._response_start.headers, body)


class _ReplyCollector:
    """A `ResponseSink` that collects the reply of a response that is not streamed."""

    __slots__ = ("_responder", "builder")

    is_ready = True

    def __init__(self, responder: GenerationResponder) -> None:
        self._responder = responder
        self.builder = ReplyBuilder()

    def render(self, batch: list[Event]) -> bytes:
        self._responder.read_warnings(batch)
        self.builder.feed_all(batch)
        return b""

    def write(self, batch: list[Event]) -> None:
        self.render(batch)

    async def send(self, chunk: bytes) -> None: ...
