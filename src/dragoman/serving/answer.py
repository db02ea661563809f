"""The one path that every generation takes to its client, streamed or whole, whatever the dialect.

    admitted -> [wait] -> Started: headers -> events -> terminal event
                  |           whole: nothing is sent before Finished
                  +-> an error before the headers is an HTTP status; after them the dialect's own terminal event

Cancelling is closing the generator of events: a client that leaves, in whatever state, does just that.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct
from starlette.types import Send

from ..core.errors import ConnectionCut, DragomanError, EngineError
from ..core.events import Event
from ..core.reply import Fold
from ..dialects.base import Writer
from ..http.leaving import Watch
from ..pipeline.engine_calls import contain
from .patience import Lookout

log = logging.getLogger(__name__)

Batches = AsyncGenerator[list[Event]]
RawHeaders = list[tuple[bytes, bytes]]


class Outcome(Struct, frozen=True):
    """What became of an answer, for those who count. status 499 is a client that left before its headers. length: bytes
    of a body that was sent as a whole.
    """

    status: int = 499
    length: int = 0
    error: DragomanError | None = None
    cancelled: bool = False


def unexpected(error: Exception) -> EngineError:
    """A bug of ours or of an engine's: the log gets all of it, the client a plain word, and never a false end."""
    log.error("answering failed", exc_info=error)
    return EngineError("The server failed while answering; see its log.", code="internal_error")


class Frame(Protocol):
    """What a stream says besides its events; every `Writer` is one."""

    @property
    def end(self) -> bytes: ...

    @property
    def keepalive(self) -> bytes: ...

    def error(self, error: DragomanError) -> bytes: ...


class Opening(Struct, frozen=True):
    """What an answer needs until its headers are out, and not for longer.

    wait: seconds that a stream's headers wait for the first event. refuse: renders an error that comes before them:
    (status, headers, body).
    """

    headers: RawHeaders
    wait: float
    refuse: Callable[[DragomanError], tuple[int, RawHeaders, bytes]]


class Answer(ABC):
    """Sends one answer, once, in the task of its request. source: what it is made of; closed in the end."""

    __slots__ = (
        "_cancelled",
        "_error",
        "_frame",
        "_is_writing",
        "_length",
        "_lookout",
        "_looks",
        "_opening",
        "_pulse",
        "_send",
        "_source",
        "_status",
        "_stream",
        "_task",
        "_timer",
    )

    def __init__(
        self, source: AsyncGenerator[object], frame: Frame, opening: Opening, lookout: Lookout, *, stream: bool
    ) -> None:
        self._source, self._frame, self._stream = source, frame, stream
        self._opening: Opening | None = opening
        self._lookout = lookout
        self._looks, self._is_writing = 0, False
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pulse: asyncio.Task[None] | None = None
        self._status, self._length, self._cancelled = 499, 0, False
        self._error: DragomanError | None = None

    @abstractmethod
    def _produce(self) -> Awaitable[None]:
        """Write the whole answer, up to its end. Raises what ends it in another way."""

    async def __call__(self, watch: Watch, send: Send) -> Outcome:
        """watch: tells that the client has left, which cancels what is being done for it here."""
        self._send, self._task = send, asyncio.current_task()
        watch(self._give_up)
        if self._stream and self._opening is not None:
            self._timer = asyncio.get_running_loop().call_later(self._opening.wait, self._show_life)
        try:
            try:
                await self._produce()
            except BaseException as error:
                failure = contain(error, self._task)
                if not isinstance(failure, Exception):
                    raise
                # Where there are no words for it, or nobody to hear them, the connection breaks off instead.
                with suppress(DragomanError, OSError):
                    await self._fail(failure if isinstance(failure, DragomanError) else unexpected(failure))
        except asyncio.CancelledError:
            # Only a cancellation of our own ends here, as with asyncio.timeout.
            if not self._cancelled or self._task is None or self._task.uncancel():
                raise
        finally:
            self._task = None
            watch(None)
            await self._settle()
        return Outcome(self._status, self._length, self._error, self._cancelled)

    def _give_up(self) -> None:
        """The client has left, or reads no more."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def _settle(self) -> None:
        """Nothing outlives its request."""
        self._lookout.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        await self._source.aclose()

    async def _fail(self, error: DragomanError) -> None:
        self._error = error
        if self._opening is not None:
            await self._whole(*self._opening.refuse(error))
        elif isinstance(error, ConnectionCut):
            # The server closes a connection whose response is not complete.
            self._cancelled = True
        else:
            await self._write(self._frame.error(error), more=False)

    async def _begin(self) -> None:
        assert self._opening is not None
        headers, self._opening = self._opening.headers, None
        self._status = 200
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lookout.add(self)
        # Events that are rendered already are sent next: a keepalive that is due now would overtake them.
        self._is_writing = True
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._is_writing = False

    async def _whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self._opening = None
        self._status, self._length = status, len(body)
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self._write(body, more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        self._looks, self._is_writing = 0, True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._is_writing = False

    def look(self) -> None:
        """Now and then: is a sign of life due, or has the client stopped reading?"""
        self._looks += 1
        if not self._is_writing and self._looks >= self._lookout.silent:
            self._show_life()
        elif self._is_writing and self._looks > self._lookout.deaf:
            self._give_up()

    def _show_life(self) -> None:
        if self._pulse is None:
            self._pulse = asyncio.get_running_loop().create_task(self._give_sign())
            self._pulse.add_done_callback(self._sign_given)

    def _sign_given(self, pulse: asyncio.Task[None]) -> None:
        self._pulse = None
        if not pulse.cancelled():
            # Whoever writes next meets the same error and tells of it.
            pulse.exception()

    async def _give_sign(self) -> None:
        if self._opening is not None:
            await self._begin()
        elif self._is_writing:
            return
        await self._write(self._frame.keepalive)


class GeneratedAnswer(Answer):
    """An answer that an engine is making, streamed or whole."""

    __slots__ = ("_batches", "_writer")

    def __init__(self, batches: Batches, writer: Writer, opening: Opening, lookout: Lookout, *, stream: bool) -> None:
        super().__init__(batches, writer, opening, lookout, stream=stream)
        self._batches, self._writer = batches, writer

    def _produce(self) -> Awaitable[None]:
        return self._pass_on() if self._stream else self._gather()

    async def _pass_on(self) -> None:
        """The hot path: a batch of events, nearly always one, becomes one write."""
        writer, send = self._writer, self._send
        async for batch in self._batches:
            said = writer.feed(batch[0]) if len(batch) == 1 else b"".join([writer.feed(event) for event in batch])
            if self._opening is not None:
                await self._begin()
            if said:
                # As `_write`, without the cost of one more coroutine a token.
                self._looks, self._is_writing = 0, True
                await send({"type": "http.response.body", "body": said, "more_body": True})
                self._is_writing = False
            # What was said is not kept until the next is.
            del batch, said
        await self._write(writer.end, more=False)

    async def _gather(self) -> None:
        fold = Fold()
        async for batch in self._batches:
            for event in batch:
                fold.feed(event)
        assert self._opening is not None
        await self._whole(200, self._opening.headers, self._writer.full(fold.reply()))


class ReplayedAnswer(Answer):
    """A stream whose events are bytes already."""

    __slots__ = ("_events",)

    def __init__(self, events: AsyncGenerator[bytes], frame: Frame, opening: Opening, lookout: Lookout) -> None:
        super().__init__(events, frame, opening, lookout, stream=True)
        self._events = events

    async def _produce(self) -> None:
        async for said in self._events:
            if self._opening is not None:
                await self._begin()
            await self._write(said)
        if self._opening is not None:
            await self._begin()
        await self._write(self._frame.end, more=False)
