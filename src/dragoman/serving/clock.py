"""Time and identity, handed in from outside so that a test can hold them still."""

from __future__ import annotations

import secrets
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Unix time in seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class IdGenerator(Protocol):
    def new(self, prefix: str) -> str:
        """An id that nobody can guess and that no other call gets."""
        ...


class RandomIdGenerator:
    """128 random bits in hexadecimal behind the prefix."""

    def new(self, prefix: str) -> str:
        return prefix + secrets.token_hex(16)
