"""A cache of KV chunks in host memory.

A chunk in host memory is being written, idle, or being read by one or more transfers.
Only idle chunks are evicted, the least recently used first. All chunks that a request
uses share its recency, ordered so that the end of a prefix is evicted before its
beginning; the end of the request makes them the most recent ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

_WRITTEN = -1
"""Stands for the reference count of a chunk whose store has not ended."""


class HostCacheUse:
    """One request's use of the cache.

    positions: index of each of its chunks, by key.
    used: keys of the chunks that it stored, found stored, or loaded.
    rank: recency of all of them until the request ends; 0 before it uses any.
    """

    __slots__ = ("positions", "rank", "used")

    def __init__(self) -> None:
        self.positions: dict[bytes, int] = {}
        self.used: set[bytes] = set()
        self.rank = 0


class HostCache:
    """A cache of `size` chunks, whose keys are hashes of their contents."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError("the host's part of the KV cache must hold at least 1 chunk")
        self.size = size
        self.num_idle = self.num_written = 0
        self._counts: dict[bytes, int] = {}
        self._ranks: dict[bytes, tuple[int, int]] = {}
        self._heap: list[tuple[tuple[int, int], bytes]] = []
        """Idle chunks by recency; also outdated entries, which are skipped."""
        self._last_rank = 0

    def __len__(self) -> int:
        """Number of chunks, including those being written."""
        return len(self._counts)

    @property
    def usage(self) -> float:
        """Share of the cache that transfers hold
        (`vllm:kv_offload_cpu_cache_usage_perc`).
        """
        return (len(self._counts) - self.num_idle) / self.size

    @property
    def write_usage(self) -> float:
        """Share of the cache that stores hold."""
        return self.num_written / self.size

    def has(self, key: bytes) -> bool:
        """Whether the cache has the chunk, complete or being written."""
        return key in self._counts

    def is_written(self, key: bytes) -> bool:
        """Whether the chunk's store has not ended."""
        return self._counts.get(key) == _WRITTEN

    def list_chunks(self) -> dict[bytes, int]:
        """List the chunks with the number of transfers that read each; -1 while a chunk
        is being written.
        """
        return dict(self._counts)

    def begin_load(self, keys: Sequence[bytes], use: HostCacheUse) -> None:
        """Hold complete chunks until `end_load`. Raises ValueError for others."""
        for key in keys:
            count = self._counts.get(key, _WRITTEN)
            if count == _WRITTEN:
                raise ValueError("a chunk is read before it is stored")
            self.num_idle -= count == 0
            self._counts[key] = count + 1
        self._record(keys, use)

    def end_load(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                self._add_idle(key)

    def begin_store(self, keys: Sequence[bytes], use: HostCacheUse) -> list[bytes] | None:
        """Reserve room for the chunks that the cache does not have, and return their
        keys.

        Other idle chunks are evicted for them, the least recently used first. Returns
        None, without evicting any, if even all of those were too few.
        """
        missing = [key for key in keys if key not in self._counts]
        self._record([key for key in keys if self._counts.get(key) != _WRITTEN], use)
        protected = frozenset(keys)
        skipped = list[tuple[tuple[int, int], bytes]]()
        num_needed = len(missing) - (self.size - len(self._counts))
        if (
            num_needed > 0
            and self.num_idle - sum(self._counts.get(key) == 0 for key in protected) < num_needed
        ):
            return None
        while num_needed > 0:
            rank, key = entry = heappop(self._heap)
            # Entries of the heap are not removed when a chunk is used again: stale ones
            # are recognized here.
            if self._counts.get(key) != 0 or self._ranks[key] != rank:
                continue
            if key in protected:
                skipped.append(entry)
                continue
            del self._counts[key], self._ranks[key]
            self.num_idle -= 1
            num_needed -= 1
        for entry in skipped:
            heappush(self._heap, entry)
        for key in missing:
            self._counts[key] = _WRITTEN
            self._ranks[key] = (use.rank, -use.positions[key])
        self.num_written += len(missing)
        return missing

    def end_store(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._counts[key] = 0
            self.num_written -= 1
            self._add_idle(key)

    def finish(self, use: HostCacheUse) -> None:
        """End a request: its chunks become the most recently used ones."""
        # The first chunk is evicted last, since the chunks after it cannot be used
        # without it.
        for key in sorted(use.used, key=use.positions.__getitem__, reverse=True):
            if key in self._counts:
                self._last_rank += 1
                self._set_rank(key, (self._last_rank, 0))
        use.used.clear()

    def _record(self, keys: Sequence[bytes], use: HostCacheUse) -> None:
        """Record the first use of each chunk by a request."""
        new = [key for key in keys if key not in use.used]
        if new and not use.rank:
            self._last_rank += 1
            use.rank = self._last_rank
        for key in new:
            use.used.add(key)
            rank = (use.rank, -use.positions[key])
            if key in self._counts and self._ranks[key] < rank:
                self._set_rank(key, rank)

    def _set_rank(self, key: bytes, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        if not self._counts[key]:
            self._push(key)

    def _add_idle(self, key: bytes) -> None:
        self.num_idle += 1
        self._push(key)

    def _push(self, key: bytes) -> None:
        heappush(self._heap, (self._ranks[key], key))
        # Rebuilt when more than half of the entries are outdated: this bounds the heap
        # at an amortized constant cost.
        if len(self._heap) > max(64, 2 * self.num_idle):
            self._heap = [
                (self._ranks[idle], idle) for idle, count in self._counts.items() if not count
            ]
            heapify(self._heap)
