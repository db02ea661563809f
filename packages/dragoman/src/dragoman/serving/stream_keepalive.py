"""Keepalives in silent streams, with detection of stalled clients by the same timer."""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import Struct


class StreamTimeouts(Struct, frozen=True):
    """Timeouts of a stream, in seconds.

    headers: how long response headers wait for the `Started` event, so that an error
        can still set the status, and where one write can send both for the first
        output.
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
