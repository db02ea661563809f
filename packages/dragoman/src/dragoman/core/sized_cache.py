"""A cache whose entries have a total size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """An LRU cache. Thread-safe. Keys must contain the owner, so that the latency of a
    request reveals nothing about the requests of others.

    max_size: the size of all entries.
    max_entry_size: that of one, which must not evict most others; None for no limit.
    overhead: the size of an entry besides its value's.
    """

    def __init__(
        self, max_size: int, *, max_entry_size: int | None = None, overhead: int = 0
    ) -> None:
        self._max_size = max_size
        self._max_entry_size = max_size if max_entry_size is None else max_entry_size
        self._overhead = overhead
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.size = 0

    def find(self, key: K) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
        return entry[0]

    def add(self, key: K, value: V, size: int) -> None:
        """Keep a value, in place of any other of this key, unless it is too large."""
        with self._lock:
            _, former_size = self._entries.pop(key, (None, 0))
            self.size -= former_size
            size += self._overhead
            if size > self._max_entry_size:
                return
            self._entries[key] = value, size
            self.size += size
            while self.size > self._max_size:
                _, (_, oldest_size) = self._entries.popitem(last=False)
                self.size -= oldest_size
