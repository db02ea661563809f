"""The pool of `blocks` without numbers, for sequences that share no prefix: how many blocks are free, and whose.

No other request can find a sequence's cached blocks, so that only a preempted sequence comes back for its own. Which of
them are left then depends on the order of evictions, which is that of `blocks`: the blocks without contents first, then
the cached ones in the order in which they were freed, of each sequence the last one first.
"""

from __future__ import annotations

from collections import deque


class CachedBlocks:
    """Free blocks with contents, of one sequence or of several. Evicted from the last one of a sequence on."""

    __slots__ = ("count", "is_owned")

    def __init__(self, count: int, is_owned: bool) -> None:
        self.count, self.is_owned = count, is_owned


class BlockCounts:
    """The pool. num_free: blocks, cached ones included."""

    def __init__(self, size: int) -> None:
        self.size = self.num_free = self._num_empty = size
        self._cached: deque[CachedBlocks] = deque()

    def allocate(self, count: int) -> None:
        self.num_free -= count
        # Blocks without contents go first, then cached ones, the longest free first, as in vLLM's free queue.
        if count <= self._num_empty:
            self._num_empty -= count
            return
        count -= self._num_empty
        self._num_empty = 0
        while count:
            oldest = self._cached[0]
            taken = min(count, oldest.count)
            oldest.count -= taken
            count -= taken
            if not oldest.count:
                self._cached.popleft()

    def release(self, count: int, cached: int, *, is_owned: bool = False) -> CachedBlocks | None:
        """Free `count` blocks of a sequence; the first `cached` of them keep their contents.

        is_owned: the sequence may come back for them, see `acquire`.
        """
        self.num_free += count
        self._num_empty += count - cached
        if not cached:
            return None
        # No sequence comes back for these, so neighbours in the queue need not be told apart, and it stays short.
        if not is_owned and self._cached and not self._cached[-1].is_owned:
            self._cached[-1].count += cached
            return None
        blocks = CachedBlocks(cached, is_owned)
        self._cached.append(blocks)
        return blocks

    def acquire(self, blocks: CachedBlocks) -> None:
        """Take all blocks that are left of a sequence's."""
        self.num_free -= blocks.count
        # The empty entry stays in the queue until `allocate` drops it: to remove it here would take a search.
        blocks.count = 0
