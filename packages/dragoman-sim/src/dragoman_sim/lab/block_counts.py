"""The block pool of a plain replica, as counts.

Only a preempted sequence can hit cached blocks: its own. How many of them are left
depends on the order of eviction, which is that of the simulator's pool: first the
blocks without contents, then the cached ones in the order in which they were freed,
each sequence's last block first.
"""

from __future__ import annotations

from collections import deque


class CachedBlocks:
    """An entry of the queue of free cached blocks, of one sequence or several.

    count: blocks that are left; a sequence's last block is evicted first.
    is_owned: the blocks belong to one preempted sequence, which can acquire them again.
    """

    __slots__ = ("count", "is_owned")

    def __init__(self, count: int, is_owned: bool) -> None:
        self.count = count
        self.is_owned = is_owned


class BlockCounts:
    """The block pool.

    size: number of all blocks.
    num_free: free blocks, including cached ones.
    """

    def __init__(self, size: int) -> None:
        self.size = self.num_free = self._num_empty = size
        self._cached: deque[CachedBlocks] = deque()

    def allocate(self, count: int) -> None:
        self.num_free -= count
        # Blocks without contents first, then cached ones in the order of their release,
        # as in vLLM's free queue.
        if count <= self._num_empty:
            self._num_empty -= count
            return
        count -= self._num_empty
        self._num_empty = 0
        while count:
            oldest = self._cached[0]
            num_evicted = min(count, oldest.count)
            oldest.count -= num_evicted
            count -= num_evicted
            if not oldest.count:
                self._cached.popleft()

    def release(self, count: int, cached: int, *, is_owned: bool = False) -> CachedBlocks | None:
        """Free `count` blocks of a sequence; the first `cached` of them keep their
        contents.

        is_owned: the sequence may `acquire` the cached blocks again.

        Returns the new entry of cached blocks; None if there are none, or they were
        merged into an entry.
        """
        self.num_free += count
        self._num_empty += count - cached
        if not cached:
            return None
        # No sequence acquires these again, so adjacent entries can be merged, which
        # keeps the queue short.
        if not is_owned and self._cached and not self._cached[-1].is_owned:
            self._cached[-1].count += cached
            return None
        blocks = CachedBlocks(cached, is_owned)
        self._cached.append(blocks)
        return blocks

    def acquire(self, blocks: CachedBlocks) -> None:
        """Take the blocks of an entry that have not been evicted."""
        self.num_free -= blocks.count
        # The empty entry stays in the queue until `allocate` drops it: removing it here
        # would need a search.
        blocks.count = 0
