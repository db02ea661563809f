"""The responder of a stream whose events are already rendered."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from .responder import Responder, ResponseStart, StreamFraming
from .stream_keepalive import StreamMonitor


class ReplayResponder(Responder):
    """Sends a stream of events that are already rendered.

    has_body: False for a response to HEAD.
    """

    __slots__ = ("_events", "has_body")

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        framing: StreamFraming,
        response_start: ResponseStart,
        monitor: StreamMonitor,
    ) -> None:
        super().__init__(events, framing, response_start, monitor, stream=True)
        self._events = events
        self.has_body = True

    async def _produce(self) -> None:
        if self.has_body:
            async for chunk in self._events:
                if self._response_start is not None:
                    await self._send_headers()
                await self._write(chunk)
        if self._response_start is not None:
            await self._send_headers()

    async def _complete(self) -> None:
        await self._write(self._framing.end if self.has_body else b"", more_body=False)
