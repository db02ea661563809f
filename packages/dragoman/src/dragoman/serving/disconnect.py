"""Monitoring of client connections: cancellation on disconnect, keepalives and
detection of stalled clients.

Servers without the disconnect extension get a fallback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from ..http.asgi_extensions import DISCONNECT_EXTENSION, OnDisconnect
from .body import ClientGone

T = TypeVar("T")


def never(_: Callable[[], object] | None, /) -> None:
    """The `OnDisconnect` of a request without a client: the callback is never called."""


async def cancel_on_disconnect(on_disconnect: OnDisconnect, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, cancelling it when the client disconnects. Call it
    after the body has been read.

    Raises:
        ClientGone: the client has disconnected.
    """
    # A task of its own: cancelling the current one would also cancel the sending of the
    # response.
    task = asyncio.get_running_loop().create_task(work)
    is_disconnected = False

    def cancel() -> None:
        nonlocal is_disconnected
        # False if the work has ended already: its result then stands.
        is_disconnected = task.cancel()

    on_disconnect(cancel)
    try:
        return await task
    except asyncio.CancelledError:
        if is_disconnected:
            raise ClientGone from None
        raise
    finally:
        on_disconnect(None)


async def with_disconnect_events(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application with an emulated disconnect extension, for servers that lack
    it.
    """
    watcher = _DisconnectWatcher(receive)
    extensions: dict[str, object] = scope.get("extensions") or {}
    try:
        await app(
            {**scope, "extensions": {**extensions, DISCONNECT_EXTENSION: watcher.on_disconnect}},
            receive,
            send,
        )
    finally:
        await watcher.close()


class _DisconnectWatcher:
    """Emulates the extension by a task that waits in `receive`; it requires that the
    body has been read.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._callback: Callable[[], object] | None = None
        self._task: asyncio.Task[None] | None = None

    def on_disconnect(self, callback: Callable[[], object] | None, /) -> None:
        """Implements `OnDisconnect`."""
        self._callback = callback
        if callback is not None and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        # After a disconnect, every call of `receive` returns `http.disconnect`.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback()

    async def close(self) -> None:
        """Cancel the task, so that it does not outlive the request."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


# Keepalives and detection of stalled streams, on one timer.


class StreamTimeouts(Struct, frozen=True):
    """Timeouts of a stream, in seconds.

    headers: how long response headers wait for the `Started` event, so that an error
        can still set the status.
    admitted_headers: the same after admission, when only overload or a failure can
        still occur.
    keepalive: maximum silence before a keepalive is sent.
    stall: how long one write may block before the client counts as disconnected.
    """

    headers: float = 2.0
    admitted_headers: float = 0.05
    keepalive: float = 5.0
    stall: float = 60.0


class MonitoredStream(Protocol):
    def on_tick(self) -> None:
        """Called once per interval."""
        ...


class StreamMonitor:
    """Monitors all streams of a server with one timer, which ticks TICKS_PER_TIMEOUT
    times within the shorter timeout.

    A timer per stream would cost half a kilobyte each and a clock read per write;
    instead, streams count ticks since their last write.

    keepalive_ticks: ticks after a write at which a keepalive is due.
    stall_ticks: ticks after which a blocked write counts as a disconnect.
    """

    TICKS_PER_TIMEOUT = 4

    def __init__(self, timeouts: StreamTimeouts) -> None:
        self.timeouts = timeouts
        # So a keepalive is late by at most one interval.
        self._interval = min(timeouts.keepalive, timeouts.stall) / self.TICKS_PER_TIMEOUT
        self.keepalive_ticks = int(timeouts.keepalive / self._interval)
        # One more: the first tick may come right after the write has begun, and the
        # timeout has to pass completely.
        self.stall_ticks = int(timeouts.stall / self._interval) + 1
        self._streams: set[MonitoredStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: MonitoredStream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def remove(self, stream: MonitoredStream) -> None:
        """Remove a stream; does nothing if it was not added."""
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)
        # A copy: a tick can remove its stream.
        for stream in tuple(self._streams):
            stream.on_tick()
