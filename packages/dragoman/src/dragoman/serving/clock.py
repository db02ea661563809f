"""Sources of time, injected so that tests can control them."""

from __future__ import annotations

import time
from os import urandom
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never decreases."""
        ...


class SystemClock:
    """The clocks of the operating system. Static methods avoid the cost of a Python
    function per call.
    """

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class IdGenerator(Protocol):
    def new(self, prefix: str) -> str:
        """Return an unguessable, unique id."""
        ...


class RandomIdGenerator:
    """Ids of 128 random bits in hexadecimal after the prefix."""

    def new(self, prefix: str) -> str:
        return prefix + urandom(16).hex()
