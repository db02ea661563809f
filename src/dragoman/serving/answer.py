"""The one path that every generation takes to its client, streamed or whole, whatever the dialect.

    admitted -> [wait] -> Started: headers -> events -> terminal event
                  |           whole: nothing is sent before Finished
                  +-> an error before the headers is an HTTP status; after them the dialect's own terminal event

Cancelling is closing the generator of events: a client that leaves, in whatever state, does just that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio
from msgspec import Struct
from starlette.types import Receive, Send

from ..core.errors import DragomanError, EngineError
from ..core.events import Event
from ..core.reply import Fold
from ..dialects.base import Writer

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
    """What became of an answer, for the log. status 499 is a client that left before its headers."""

    status: int = 499
    error: DragomanError | None = None
    cancelled: bool = False


def unexpected(error: Exception) -> EngineError:
    """A bug of ours or of an engine's: the log gets all of it, the client a plain word, and never a false end."""
    log.error("answering failed", exc_info=error)
    return EngineError("The server failed while it was answering; its log says why.", code="internal_error")


class Answer:
    """Sends one answer. `refuse` renders an error that comes before the headers: (status, headers, body)."""

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
        self._batches, self._writer, self._stream = batches, writer, stream
        self._headers, self._refuse, self._patience = headers, refuse, patience
        self._begun = False
        self._writing_since: float | None = None
        self._last_write = 0.0
        self.outcome = Outcome()

    async def __call__(self, receive: Receive, send: Send) -> None:
        self._send, self._now = send, asyncio.get_running_loop().time
        async with aclosing(self._batches), anyio.create_task_group() as tasks:
            tasks.start_soon(self._leave_with_client, receive, tasks.cancel_scope)
            if self._stream:
                tasks.start_soon(self._keep_alive, tasks.cancel_scope)
            await self._run()
            tasks.cancel_scope.cancel()

    async def _run(self) -> None:
        try:
            await (self._pass_on() if self._stream else self._gather())
        except DragomanError as error:
            await self._fail(error)
        except Exception as error:
            await self._fail(unexpected(error))

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

    async def _fail(self, error: DragomanError) -> None:
        self.outcome.error = error
        if self._begun:
            await self._write(self._writer.error(error), more=False)
        else:
            await self._whole(*self._refuse(error))

    async def _begin(self) -> None:
        self._begun = True
        self.outcome.status = 200
        await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})

    async def _whole(self, status: int, headers: RawHeaders, body: bytes) -> None:
        self._begun = True
        self.outcome.status = status
        length = (b"content-length", str(len(body)).encode())
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await self._write(body, more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        self._last_write = self._writing_since = self._now()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._writing_since = None

    async def _leave_with_client(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.outcome.cancelled = True
        scope.cancel()

    async def _keep_alive(self, scope: anyio.CancelScope) -> None:
        """Say something in every silence, and give up a client that has stopped reading."""
        await anyio.sleep(self._patience.headers)
        if not self._begun:
            await self._begin()
            await self._write(self._writer.keepalive)
        while True:
            silence = self._now() - self._last_write
            if self._writing_since is not None:
                if self._now() - self._writing_since > self._patience.stall:
                    self.outcome.cancelled = True
                    scope.cancel()
                await anyio.sleep(self._patience.keepalive)
            elif silence >= self._patience.keepalive:
                await self._write(self._writer.keepalive)
            else:
                await anyio.sleep(self._patience.keepalive - silence)
