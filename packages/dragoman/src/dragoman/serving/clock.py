"""Sources of time, injected so that tests can control them."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
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


_ID_DIGITS = 32
_IDS_PER_BLOCK = 256


class RandomIdGenerator:
    """Ids of 128 random bits in hexadecimal after the prefix.

    The bits are drawn for many ids at once: a system call costs several times as much as
    the rest of an id.
    """

    def __init__(self) -> None:
        self._ids: Iterator[str] = iter(())
        # A forked process must not give out the ids of its parent. Windows has no fork.
        if hasattr(os, "register_at_fork"):
            discard = weakref.WeakMethod(self._discard)
            os.register_at_fork(after_in_child=lambda: (bound := discard()) and bound())

    def new(self, prefix: str) -> str:
        return prefix + (next(self._ids, None) or self._draw())

    def _draw(self) -> str:
        digits = urandom(_IDS_PER_BLOCK * _ID_DIGITS // 2).hex()
        ids = iter([digits[i : i + _ID_DIGITS] for i in range(0, len(digits), _ID_DIGITS)])
        first = next(ids)
        self._ids = ids
        return first

    def _discard(self) -> None:
        self._ids = iter(())
