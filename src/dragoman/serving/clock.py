"""Sources of time and ids, injected so that tests can control them."""

from __future__ import annotations

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; never decreases."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class IdGenerator(Protocol):
    def new(self, prefix: str) -> str:
        """Return an unguessable, unique id."""
        ...


class RandomIdGenerator:
    """Ids of 128 random bits in hexadecimal after the prefix."""

    def new(self, prefix: str) -> str:
        return prefix + secrets.token_hex(16)
