"""The responder, which sends one response in the task of its request, streamed or not.

    admitted -> [wait] -> Started: headers -> events -> terminal event
                  |           written with the first output, unless that is late;
                  |           not streamed: nothing is sent before Finished
                  +-> an error before the headers is an HTTP status,
                      after them the dialect's terminal event

Closing the generator of events cancels the generation; a disconnect does that in every
state.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct
from starlette.types import Send

from ..core.errors import ConnectionDropped, DragomanError, EngineError
from ..http.asgi_extensions import DirectResponse, OnDisconnect
from ..pipeline.engine_calls import translate_engine_exception
from .stream_keepalive import StreamMonitor

log = logging.getLogger(__name__)

RawHeaders = list[tuple[bytes, bytes]]


class ResponseOutcome(Struct, frozen=True):
    """The outcome of a response, for logs and metrics.

    status: HTTP status; 499 if the client disconnected before the headers.
    length: size of a body that was not streamed, in bytes.
    error: the error that ended the response; None if it is complete.
    cancelled: the client disconnected or stopped reading.
    """

    status: int = 499
    length: int = 0
    error: DragomanError | None = None
    cancelled: bool = False


def wrap_unexpected_error(error: Exception) -> EngineError:
    """Log an unexpected error with its traceback, and return a generic one for the
    client.
    """
    log.error("answering failed", exc_info=error)
    return EngineError(
        "The server failed to generate a response; see its log.", code="internal_error"
    )


async def send_whole(
    send: Send,
    direct: DirectResponse | None,
    status: int,
    headers: RawHeaders,
    body: bytes,
    length: int | None = None,
) -> None:
    """Send a response that is complete: in one write, where the server supports that.

    length: bytes of the body that a GET would return; None for those of `body`.
    """
    size = len(body) if length is None else length
    fields = [*headers, (b"content-length", b"%d" % size)]
    if direct is not None and direct.can_respond:
        direct.respond(status, fields, body)
        return
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


class StreamFraming(Protocol):
    """The parts of a stream besides its events; every `Writer` implements it."""

    @property
    def end(self) -> bytes: ...

    @property
    def keepalive(self) -> bytes: ...

    def render_error(self, error: DragomanError) -> bytes: ...


class RawFraming:
    """Raw content without framing. An error cannot be rendered in it, so it breaks the
    connection.
    """

    end = b""
    keepalive = b""

    def render_error(self, error: DragomanError) -> bytes:
        raise error


class ResponseStart(Struct, frozen=True):
    """The data that a response needs until its headers are sent; it is released then.

    headers: headers of a successful response.
    max_wait: seconds that a stream's headers wait for the first event.
    render_error: renders an error before the headers as (status, headers, body).
    """

    headers: RawHeaders
    max_wait: float
    render_error: Callable[[DragomanError], tuple[int, RawHeaders, bytes]]


class Source(Protocol):
    def aclose(self) -> Awaitable[object]: ...


class Responder(ABC):
    """Sends one response in the request's task.

    source: the content; closed at the end.
    framing: end, keepalive and errors of a stream.
    response_start: headers, and the rendering of errors before them.
    monitor: its ticks send keepalives and detect clients that have stopped reading.
    stream: send the headers before the content is complete.
    """

    __slots__ = (
        "_direct",
        "_error",
        "_framing",
        "_is_cancelled",
        "_is_stream",
        "_is_writing",
        "_keepalive_task",
        "_length",
        "_monitor",
        "_response_start",
        "_send",
        "_source",
        "_status",
        "_task",
        "_ticks",
        "_timer",
    )

    def __init__(
        self,
        source: Source,
        framing: StreamFraming,
        response_start: ResponseStart,
        monitor: StreamMonitor,
        *,
        stream: bool,
    ) -> None:
        self._source = source
        self._framing = framing
        self._is_stream = stream
        self._response_start: ResponseStart | None = response_start
        self._monitor = monitor
        self._direct: DirectResponse | None = None
        self._ticks = 0
        self._is_writing = False
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keepalive_task: asyncio.Task[None] | None = None
        self._status = 499
        self._length = 0
        self._is_cancelled = False
        self._error: DragomanError | None = None

    @abstractmethod
    def _produce(self) -> Awaitable[None]:
        """Write the response up to its end. Raises the error that ends it prematurely.

        No coroutine of its own waits around it: each takes a quarter of a kilobyte of a
        stream that waits.
        """

    @abstractmethod
    async def _complete(self) -> None:
        """Write the end of the response."""

    async def __call__(
        self, on_disconnect: OnDisconnect, send: Send, direct: DirectResponse | None = None
    ) -> ResponseOutcome:
        """Send the response.

        on_disconnect: registers the callback that cancels it.
        direct: writes pieces of a stream without a coroutine, where the server supports
            that.
        """
        self._send = send
        self._task = asyncio.current_task()
        self._direct = direct
        # From here on a disconnect cancels this task; until now the handler had to
        # watch for it.
        on_disconnect(self._abort)
        if self._is_stream and self._response_start is not None:
            # Send headers if the first token is slow, and a keepalive if the engine has
            # not started: proxies and clients would time out.
            self._timer = asyncio.get_running_loop().call_later(
                self._response_start.max_wait, self._on_slow_start
            )
        try:
            try:
                await self._produce()
                await self._complete()
            except BaseException as error:
                failure = translate_engine_exception(error, self._task)
                if not isinstance(failure, Exception):
                    raise
                # If the error cannot be rendered or the client is gone, the connection
                # is closed without a terminal event.
                with suppress(DragomanError, OSError):
                    await self._fail(
                        failure
                        if isinstance(failure, DragomanError)
                        else wrap_unexpected_error(failure)
                    )
        except asyncio.CancelledError:
            # Only our own cancellation ends here, as in asyncio.timeout.
            if not self._is_cancelled or self._task is None or self._task.uncancel():
                raise
        finally:
            self._task = None
            on_disconnect(None)
            # Nothing may outlive the request: timers, tasks and the generation end
            # here.
            self._monitor.remove(self)
            if self._timer is not None:
                self._timer.cancel()
            if self._keepalive_task is not None:
                self._keepalive_task.cancel()
                await asyncio.gather(self._keepalive_task, return_exceptions=True)
            await self._source.aclose()
        return ResponseOutcome(self._status, self._length, self._error, self._is_cancelled)

    def _abort(self) -> None:
        """Cancel: the client has disconnected or has stopped reading."""
        if self._task is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._task.cancel()

    async def _fail(self, error: DragomanError) -> None:
        self._error = error
        if self._response_start is not None:
            await self._send_whole(*self._response_start.render_error(error))
        # An injected fault: no terminal event, as if the network had failed.
        elif isinstance(error, ConnectionDropped):
            # The server closes a connection whose response is incomplete.
            self._is_cancelled = True
        else:
            await self._write(self._framing.render_error(error), more_body=False)

    def _begin_stream(self) -> RawHeaders:
        """Begin a stream; return its headers, which the caller sends."""
        assert self._response_start is not None
        headers = self._response_start.headers
        self._response_start = None
        self._status = 200
        self._monitor.add(self)
        return headers

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_slow_start(self) -> None:
        """Send headers that are still to be sent, or those that wait for the first
        output.
        """
        self._timer = None
        if self._response_start is not None:
            self._send_keepalive()
        elif self._direct is not None:
            self._direct.flush()

    async def _send_headers(self) -> None:
        self._cancel_timer()
        headers = self._begin_stream()
        # A keepalive that is due during this send must not overtake the events that are
        # already rendered.
        self._is_writing = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._is_writing = False

    def _send_whole(self, status: int, headers: RawHeaders, body: bytes) -> Awaitable[None]:
        self._response_start = None
        self._status = status
        self._length = len(body)
        # A keepalive task that has already started must not write before the body.
        self._is_writing = True
        return send_whole(self._send, self._direct, status, headers, body)

    async def _write(self, body: bytes, *, more_body: bool = True) -> None:
        self._ticks = 0
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more_body})
        self._is_writing = False

    def on_tick(self) -> None:
        """Send a keepalive if one is due; abort if the client has stopped reading."""
        self._ticks += 1
        if not self._is_writing and self._ticks >= self._monitor.keepalive_ticks:
            self._send_keepalive()
        elif self._is_writing and self._ticks > self._monitor.stall_ticks:
            self._abort()

    def _send_keepalive(self) -> None:
        # One pending keepalive is enough.
        if self._keepalive_task is None:
            self._keepalive_task = asyncio.get_running_loop().create_task(self._write_keepalive())
            self._keepalive_task.add_done_callback(self._on_keepalive_done)

    def _on_keepalive_done(self, task: asyncio.Task[None]) -> None:
        self._keepalive_task = None
        if not task.cancelled():
            # Retrieve the exception to silence asyncio's warning; the next write fails
            # with the same error.
            task.exception()

    async def _write_keepalive(self) -> None:
        if self._response_start is not None:
            await self._send_headers()
        # A write in progress keeps the connection alive.
        elif self._is_writing:
            return
        await self._write(self._framing.keepalive)
