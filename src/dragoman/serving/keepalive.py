"""How long a client is kept waiting without a word, and the one timer that sees to it. Knows no HTTP."""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import Struct


class StreamTimeouts(Struct, frozen=True):
    """Seconds. headers: how long a stream's headers wait for Started, that a refusal may still be an HTTP status.

    admitted: the same where only overload or failure can refuse any more. keepalive: longest silence.
    stall: how long one write may take before the client counts as gone.
    """

    headers: float = 2.0
    admitted_headers: float = 0.05
    keepalive: float = 5.0
    stall: float = 60.0


class MonitoredStream(Protocol):
    def on_tick(self) -> None:
        """Once an interval."""
        ...


class StreamMonitor:
    """Looks at all streams of a server in one go, some times in the shorter of keepalive and stall.

    A timer for each of them would take half a kilobyte a stream, and the time of every write would have to be known;
    so they count the looks since, of which each is an `interval`.

    silent: at the look of this number after a write its time is nearly up. deaf: at this one it is over.
    """

    TICKS_PER_TIMEOUT = 4

    def __init__(self, timeouts: StreamTimeouts) -> None:
        self.timeouts = timeouts
        self._interval = min(timeouts.keepalive, timeouts.stall) / self.TICKS_PER_TIMEOUT
        self.keepalive_ticks = int(timeouts.keepalive / self._interval)
        self.stall_ticks = int(timeouts.stall / self._interval) + 1
        self._streams: set[MonitoredStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: MonitoredStream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def remove(self, stream: MonitoredStream) -> None:
        """Also one that was never added."""
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)
        for stream in tuple(self._streams):
            stream.on_tick()
