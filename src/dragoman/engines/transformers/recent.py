"""What was made last, by its name, as much of it as fits into so many bytes. Safe to use from several threads."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """size: bytes of one. The last one is kept however large it is."""

    def __init__(self, most: int, size: Callable[[T], int]) -> None:
        self._most, self._size = most, size
        self._kept: OrderedDict[bytes, T] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, name: bytes, make: Callable[[], T]) -> T:
        """The one that is kept, else what `make` makes, which is kept then."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
        made = make()
        with self._lock:
            if name not in self._kept:
                self._kept[name] = made
                self._bytes += self._size(made)
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= self._size(self._kept.popitem(last=False)[1])
        return made

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0
