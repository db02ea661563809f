"""How long a client is kept waiting without a word, and the one timer that sees to it. Knows no HTTP."""

from __future__ import annotations

import asyncio
from typing import Protocol

from msgspec import Struct


class Patience(Struct, frozen=True):
    """Seconds. headers: how long a stream's headers wait for Started, that a refusal may still be an HTTP status.

    admitted: the same where only overload or failure can refuse any more. keepalive: longest silence.
    stall: how long one write may take before the client counts as gone.
    """

    headers: float = 2.0
    admitted: float = 0.05
    keepalive: float = 5.0
    stall: float = 60.0


class Watched(Protocol):
    def look(self) -> None:
        """Once an interval."""
        ...


class Lookout:
    """Looks at all streams of a server in one go, some times in the shorter of keepalive and stall.

    A timer for each of them would take half a kilobyte a stream, and the time of every write would have to be known;
    so they count the looks since, of which each is an `interval`.

    silent: at the look of this number after a write its time is nearly up. deaf: at this one it is over.
    """

    TIMES = 4

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._interval = min(patience.keepalive, patience.stall) / self.TIMES
        self.silent = int(patience.keepalive / self._interval)
        self.deaf = int(patience.stall / self._interval) + 1
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: Watched) -> None:
        self._watched.add(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)

    def remove(self, one: Watched) -> None:
        """Also one that was never added."""
        self._watched.discard(one)
        if not self._watched and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._look)
        for one in tuple(self._watched):
            one.look()
