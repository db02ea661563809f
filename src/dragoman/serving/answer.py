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
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

from msgspec import Struct
from starlette.types import Receive, Send

from ..core.errors import ConnectionCut, DragomanError, EngineError
from ..core.events import Event
from ..core.reply import Fold
from ..dialects.base import Writer
from .leaving import until_gone

log = logging.getLogger(__name__)

Batches = AsyncGenerator[list[Event]]
RawHeaders = list[tuple[bytes, bytes]]


class Patience(Struct, frozen=True):
    """Seconds. headers: how long a stream's headers wait for Started, that a refusal may still be an HTTP status.

    admitted: the same where only overload or failure can refuse any more. keepalive: longest silence.
    stall: how long one write may take before the client counts as gone.
    """

    headers: float = 2.0
    admitted: float = 0.05
    keepalive: float = 5.0
    stall: float = 60.0


class Outcome(Struct):
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
    return EngineError("The server failed while it was answering; its log says why.", code="internal_error")


class Frame(Protocol):
    """What a stream says besides its events; every `Writer` is one."""

    @property
    def end(self) -> bytes: ...

    @property
    def keepalive(self) -> bytes: ...

    def error(self, error: DragomanError) -> bytes: ...


class Answer(ABC):
    """Sends one answer. `refuse` renders an error that comes before the headers: (status, headers, body)."""

    def __init__(
        self,
        frame: Frame,
        *,
        stream: bool,
        headers: RawHeaders,
        refuse: Callable[[DragomanError], tuple[int, RawHeaders, bytes]],
        patience: Patience,
    ) -> None:
        self._frame, self._stream = frame, stream
        self._headers, self._refuse, self._patience = headers, refuse, patience
        self._begun = False
        self._writing_since: float | None = None
        self._last_write = 0.0
        self._pulse: asyncio.Task[None] | None = None
        self.outcome = Outcome()

    @abstractmethod
    async def _produce(self) -> None:
        """Write the whole answer, up to its end. Raises what ends it in another way."""

    async def __call__(self, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self._send, self._now = send, loop.time
        over: asyncio.Future[None] = loop.create_future()
        # A task of its own: a token then wakes three coroutines, and not the whole chain down from the server.
        self._running = loop.create_task(self._run())
        leaving = loop.create_task(until_gone(receive))
        # As `asyncio.wait` for the first of them, which takes a kilobyte for as long as a stream runs.
        ends = _ending(over)
        self._running.add_done_callback(ends)
        leaving.add_done_callback(ends)
        self._timer = loop.call_later(self._patience.headers, self._look) if self._stream else None
        try:
            await over
            self.outcome.cancelled |= not self._running.done()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await _end(self._running, leaving, self._pulse)

    async def _run(self) -> None:
        try:
            await self._produce()
        except DragomanError as error:
            await self._fail(error)
        except Exception as error:
            await self._fail(unexpected(error))

    async def _fail(self, error: DragomanError) -> None:
        self.outcome.error = error
        if self._begun and isinstance(error, ConnectionCut):
            # The server closes a connection whose response is not complete.
            self.outcome.cancelled = True
        elif self._begun:
            await self._write(self._frame.error(error), more=False)
        else:
            await self._whole(*self._refuse(error))

    async def _begin(self) -> None:
        self._begun = True
        self.outcome.status = 200
        headers, self._headers = self._headers, []
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self._begun = True
        self.outcome.status = status
        self.outcome.length = len(body)
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self._write(body, more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        self._last_write = self._writing_since = self._now()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._writing_since = None

    def _look(self) -> None:
        """Now and then: is a sign of life due, or has the client stopped reading?"""
        silence = self._now() - self._last_write
        wait = self._patience.keepalive
        if self._writing_since is not None:
            if self._now() - self._writing_since > self._patience.stall:
                self.outcome.cancelled = True
                self._running.cancel()
        elif not self._begun or silence >= wait:
            self._pulse = asyncio.get_running_loop().create_task(self._give_sign())
            self._pulse.add_done_callback(self._sign_given)
        else:
            wait -= silence
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _sign_given(self, pulse: asyncio.Task[None]) -> None:
        self._pulse = None
        if not pulse.cancelled():
            # Whoever writes next meets the same error and tells of it.
            pulse.exception()

    async def _give_sign(self) -> None:
        if not self._begun:
            await self._begin()
        await self._write(self._frame.keepalive)


class GeneratedAnswer(Answer):
    """An answer that an engine is making, streamed or whole."""

    def __init__(
        self,
        batches: Batches,
        writer: Writer,
        *,
        stream: bool,
        headers: RawHeaders,
        refuse: Callable[[DragomanError], tuple[int, RawHeaders, bytes]],
        patience: Patience,
    ) -> None:
        super().__init__(writer, stream=stream, headers=headers, refuse=refuse, patience=patience)
        self._batches, self._writer = batches, writer

    async def _produce(self) -> None:
        async with aclosing(self._batches):
            await (self._pass_on() if self._stream else self._gather())

    async def _pass_on(self) -> None:
        """The hot path: a batch of events, nearly always one, becomes one write."""
        feed, send, now = self._writer.feed, self._send, self._now
        async for batch in self._batches:
            said = feed(batch[0]) if len(batch) == 1 else b"".join([feed(event) for event in batch])
            if not self._begun:
                await self._begin()
            if said:
                # As `_write`, without the cost of one more coroutine a token.
                self._last_write = self._writing_since = now()
                await send({"type": "http.response.body", "body": said, "more_body": True})
                self._writing_since = None
        await self._write(self._writer.end, more=False)

    async def _gather(self) -> None:
        fold = Fold()
        async for batch in self._batches:
            for event in batch:
                fold.feed(event)
        await self._whole(200, self._headers, self._writer.full(fold.reply()))


class ReplayedAnswer(Answer):
    """A stream whose events are bytes already."""

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        frame: Frame,
        *,
        headers: RawHeaders,
        refuse: Callable[[DragomanError], tuple[int, RawHeaders, bytes]],
        patience: Patience,
    ) -> None:
        super().__init__(frame, stream=True, headers=headers, refuse=refuse, patience=patience)
        self._events = events

    async def _produce(self) -> None:
        async with aclosing(self._events):
            async for said in self._events:
                if not self._begun:
                    await self._begin()
                await self._write(said)
            if not self._begun:
                await self._begin()
            await self._write(self._frame.end, more=False)


def _ending(over: asyncio.Future[None]) -> Callable[[asyncio.Task[None]], None]:
    def end(_: asyncio.Task[None]) -> None:
        if not over.done():
            over.set_result(None)

    return end


async def _end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel what still runs and wait for it, so that nothing outlives its request."""
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
