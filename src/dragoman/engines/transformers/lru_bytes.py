"""An LRU cache bounded by bytes. Thread-safe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class LruBytes(Generic[T]):
    """A cache of computed values.

    max_bytes: limit of all values; the most recent one is cached even if it is larger.
    size: returns the bytes of a value.
    """

    def __init__(self, max_bytes: int, size: Callable[[T], int]) -> None:
        self._max_bytes, self._size = max_bytes, size
        self._items: OrderedDict[bytes, T] = OrderedDict()
        self._total_bytes = 0
        self._lock = Lock()

    def get_or_compute(self, key: bytes, compute: Callable[[], T]) -> T:
        """Return the cached value, or compute and cache it."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
                return self._items[key]
        # Without the lock: computing an image takes long, and computing one twice does no harm.
        value = compute()
        with self._lock:
            if key not in self._items:
                self._items[key] = value
                self._total_bytes += self._size(value)
            while self._total_bytes > self._max_bytes and len(self._items) > 1:
                self._total_bytes -= self._size(self._items.popitem(last=False)[1])
        return value

    def clear(self) -> None:
        with self._lock:
            self._items.clear()
            self._total_bytes = 0
