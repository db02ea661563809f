"""The responder of a generation, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from ..core.errors import DragomanError
from ..core.events import ChoiceFinished, Event, Finished, PromptTokens, Started
from ..core.field_names import CORE_NAMES, FieldNames
from ..core.reply import ReplyBuilder
from ..dialects.interfaces import Writer
from ..http.asgi_extensions import DirectResponse
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


_WITHOUT_OUTPUT = frozenset({Started, PromptTokens})
_BEFORE_OTHERS = frozenset({*_WITHOUT_OUTPUT, ChoiceFinished, Finished})
"""The types of the last event in a batch that others nearly always follow at once. Each
is sent once or a few times, so little is held of an engine that never waits.
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
        "_batches",
        "_builder",
        "_engine_warnings",
        "_field_names",
        "_is_followed",
        "_is_starting",
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
        self._builder = None if stream else ReplyBuilder()
        self._writer = writer
        self._warnings = warnings
        self._render_warnings = render_warnings
        self._is_starting = True
        # Whether others nearly always follow the batch that was rendered last.
        self._is_followed = False
        self._field_names = field_names
        self._engine_warnings: tuple[str, ...] = ()

    async def _fail(self, error: DragomanError) -> None:
        self._field_names.translate(error)
        await super()._fail(error)

    def _produce(self) -> Awaitable[None]:
        builder = self._builder
        if builder is None:
            return self._batches.deliver(self, can_write=self._direct is not None)
        return self._batches.deliver(_ReplyCollector(builder), can_write=True, is_whole=True)

    async def _complete(self) -> None:
        if self._builder is None:
            comment = b": dragoman_warnings %s\n\n" % self._warnings if self._warnings else b""
            await self._write(comment + self._writer.end, more_body=False)
            return
        self._add_warnings(self._builder.warnings)
        assert self._response_start is not None
        body = add_warnings(self._writer.render_full(self._builder.build()), self._warnings)
        await self._send_whole(200, self._response_start.headers, body)

    @property
    def is_ready(self) -> bool:
        """Implements `ResponseSink`: whether the client reads fast enough, and the
        server can write without a coroutine.
        """
        direct = self._direct
        return direct is not None and (
            direct.can_write or (self._response_start is not None and direct.can_respond)
        )

    def render(self, batch: list[Event]) -> bytes:
        last = type(batch[-1])
        self._is_followed = last in _BEFORE_OTHERS
        if self._is_starting or last is Finished:
            self._read_warnings(batch)
        return b"".join([self._writer.feed(event) for event in batch])

    def write(self, batch: list[Event]) -> None:
        direct = self._direct
        assert direct is not None
        if self._is_starting:
            self._read_warnings(batch)
        feed = self._writer.feed
        # Nearly always a single event.
        chunk = feed(batch[0]) if len(batch) == 1 else b"".join([feed(event) for event in batch])
        last = type(batch[-1])
        if last is ChoiceFinished:
            self._write_soon(direct, chunk)
        elif self._is_starting:
            self._write_start(direct, chunk, has_output=last not in _WITHOUT_OUTPUT)
        elif chunk:
            self._ticks = 0
            direct.write(chunk)

    def _write_start(self, direct: DirectResponse, chunk: bytes, *, has_output: bool) -> None:
        if not has_output and self._timer is not None:
            if self._response_start is not None:
                direct.begin(200, self._begin_stream())
            # With the first output, or when the timer ends.
            direct.hold(chunk)
            return
        self._start(direct)
        direct.write(chunk)

    def _write_soon(self, direct: DirectResponse, chunk: bytes) -> None:
        """Write a piece together with the end of the stream, if that follows at once."""
        if self._is_starting:
            self._start(direct)
        self._ticks = 0
        direct.hold(chunk)
        call_soon = asyncio.get_running_loop().call_soon
        # In the second iteration: in the first, the task that ends the stream may come
        # after the flush.
        call_soon(call_soon, direct.flush)

    def _start(self, direct: DirectResponse) -> None:
        """Begin the stream if it has not begun; its start waits no longer."""
        if self._response_start is not None:
            direct.begin(200, self._begin_stream())
        self._is_starting = False
        self._cancel_timer()

    async def send(self, chunk: bytes) -> None:
        direct = self._direct
        if direct is not None and self.is_ready:
            if self._is_followed:
                self._write_soon(direct, chunk)
                return
            # At once: an engine that never waits lets no other callback run, and the
            # client would get nothing before its end.
            if self._is_starting:
                self._start(direct)
            self._ticks = 0
            direct.write(chunk)
            return
        self._is_starting = False
        if self._response_start is not None:
            await self._send_headers()
        if chunk:
            # Inlined `_write`: saves a coroutine per token.
            self._ticks = 0
            self._is_writing = True
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._is_writing = False

    def _read_warnings(self, batch: list[Event]) -> None:
        """Add the engine's warnings, which are in the `Started` event of the first
        batch and in `Finished`.
        """
        for event in batch:
            if type(event) is Started or type(event) is Finished:
                self._add_warnings(event.warnings)

    def _add_warnings(self, warnings: tuple[str, ...]) -> None:
        """Add warnings of the engine to those of the call."""
        if not warnings or self._render_warnings is None:
            return
        self._engine_warnings = warnings = self._engine_warnings + warnings
        start = self._response_start
        rendered = self._render_warnings(warnings, None if start is None else start.headers)
        self._warnings = rendered.body
        if start is not None:
            self._response_start = msgspec.structs.replace(start, headers=rendered.headers)


class _ReplyCollector:
    """A `ResponseSink` that collects the reply of a response that is not streamed."""

    __slots__ = ("_builder",)

    is_ready = True

    def __init__(self, builder: ReplyBuilder) -> None:
        self._builder = builder

    def render(self, batch: list[Event]) -> bytes:
        self._builder.feed_all(batch)
        return b""

    def write(self, batch: list[Event]) -> None:
        self._builder.feed_all(batch)

    async def send(self, chunk: bytes) -> None: ...
