"""The pool of KV cache blocks and the prefix cache over it, by vLLM's rules. It handles
block numbers only.

A block is either held (reference count above 0) or free. A free block keeps its
contents and its hash until it is reallocated. Blocks without a hash, which no lookup
finds, are reallocated first, the last one freed first; then the cached ones, the first
one freed first. Two blocks may hold the same contents (both were computed before either
was cached): lookups return the older one until it is evicted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

NULL_BLOCK = 0
"""vLLM's null block, a placeholder; never allocated."""


class BlockCached(Struct, frozen=True):
    """A block was cached under its hash."""

    block: int
    hash: bytes


class BlockRemoved(Struct, frozen=True):
    """A cached block was evicted."""

    block: int
    hash: bytes


class AllBlocksCleared(Struct, frozen=True):
    """The whole prefix cache was reset."""


CacheEvent = BlockCached | BlockRemoved | AllBlocksCleared


class SimulatedBlockPool:
    """A pool of `size` blocks; all but NULL_BLOCK can be allocated.

    record: whether to collect events for `take_events`.
    size: number of blocks that can be allocated in total.
    num_free: number of free blocks, cached ones included.
    """

    def __init__(self, size: int, *, record: bool = False) -> None:
        self._ref_counts = [0] * size
        self.size = self.num_free = size - 1
        # The free blocks in the order of their reuse. A block that is acquired stays in
        # it: its first `_num_stale` entries do not count, which costs less than an
        # ordered dict. Only blocks with a hash have such entries, and they return to
        # the end.
        self._free = deque(range(1, size))
        self._num_stale = [0] * size
        # The first block of each hash serves lookups; later duplicates replace it once
        # it is evicted. They are rare, so most hashes have no list.
        self._block_by_hash: dict[bytes, int] = {}
        self._duplicates: dict[bytes, list[int]] = {}
        self._hashes: list[bytes | None] = [None] * size
        self._events: list[CacheEvent] | None = [] if record else None

    @property
    def num_used(self) -> int:
        return self.size - self.num_free

    @property
    def num_cached(self) -> int:
        """Number of different hashes in the prefix cache."""
        return len(self._block_by_hash)

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1 (`vllm:kv_cache_usage_perc`)."""
        return self.num_used / self.size

    def get_ref_count(self, block: int) -> int:
        """Number of sequences that hold this block."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Allocate blocks and evict their cached contents. Raises ValueError if fewer
        than `count` blocks are free.
        """
        if count > self.num_free:
            raise ValueError(f"cannot allocate {count} blocks: {self.num_free} are free")
        self.num_free -= count
        take = self._free.popleft
        counts = self._ref_counts
        stale = self._num_stale
        hashes = self._hashes
        block_by_hash = self._block_by_hash
        duplicates = self._duplicates
        events = self._events
        blocks: list[int] = []
        for _ in range(count):
            block = take()
            while stale[block]:
                stale[block] -= 1
                block = take()
            blocks.append(block)
            counts[block] = 1
            block_hash = hashes[block]
            if block_hash is None:
                continue
            hashes[block] = None
            if duplicates and block_hash in duplicates:
                self._evict_duplicate(block, block_hash)
            else:
                del block_by_hash[block_hash]
            if events is not None:
                events.append(BlockRemoved(block, block_hash))
        return blocks

    def _evict_duplicate(self, block: int, block_hash: bytes) -> None:
        """Evict one of several blocks with the same contents.

        Two sequences may compute the same block at the same time; as long as one copy
        is left, the prefix is a hit: the oldest duplicate takes its place.
        """
        duplicates = self._duplicates[block_hash]
        if self._block_by_hash[block_hash] == block:
            self._block_by_hash[block_hash] = duplicates.pop(0)
        else:
            duplicates.remove(block)
        if not duplicates:
            del self._duplicates[block_hash]

    def get(self, block_hash: bytes) -> int | None:
        """Return the block that is cached under this hash; None if there is none."""
        return self._block_by_hash.get(block_hash)

    def get_hash(self, block: int) -> bytes | None:
        """Return the hash under which a block is cached; None if it is not."""
        return self._hashes[block]

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Find the cached blocks of the longest prefix of these hashes. Does not
        acquire them.
        """
        # Without a loop in Python: the head of the queue looks up its prompt in each
        # step.
        return list(iter(map(self._block_by_hash.get, hashes).__next__, None))

    def count_free(self, blocks: Iterable[int]) -> int:
        """Count how many of these blocks are free: acquiring them reduces `num_free` by
        that number.
        """
        return list(map(self._ref_counts.__getitem__, blocks)).count(0)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Increment the reference counts of cached blocks."""
        counts = self._ref_counts
        for block in blocks:
            if not counts[block]:
                self._num_stale[block] += 1
                self.num_free -= 1
            counts[block] += 1
        if len(self._free) > 2 * len(counts):
            self._drop_stale()

    def _drop_stale(self) -> None:
        stale = self._num_stale
        free = deque[int]()
        for block in self._free:
            if stale[block]:
                stale[block] -= 1
            else:
                free.append(block)
        self._free = free

    def release(self, blocks: Sequence[int]) -> None:
        """Decrement the reference counts of a sequence's blocks, given in sequence
        order.

        The last blocks are reused first: a prefix has more cache hits than what follows
        it.
        """
        counts = self._ref_counts
        hashes = self._hashes
        freed: list[int] = []
        unhashed: list[int] = []
        # In reverse, as in vLLM: the end of a prompt is evicted before its beginning,
        # which other prompts may share.
        for block in reversed(blocks):
            count = counts[block]
            # A block that is freed twice would later be allocated to two sequences.
            if count < 1:
                raise ValueError(f"block {block} is not held")
            counts[block] = count - 1
            if count == 1:
                if hashes[block] is None:
                    unhashed.append(block)
                else:
                    freed.append(block)
        self.num_free += len(freed) + len(unhashed)
        self._free.extend(freed)
        # Blocks without a hash move to the front: nothing is lost by reusing a block
        # that no lookup can find.
        self._free.extendleft(reversed(unhashed))

    def cache(self, block: int, block_hash: bytes) -> None:
        """Register a held, full block under its hash."""
        self.cache_run((block,), (block_hash,))

    def cache_run(self, blocks: Iterable[int], block_hashes: Iterable[bytes]) -> None:
        """Register held, full blocks under their hashes.

        A long prompt has hundreds, so a block costs few operations here.
        """
        hashes = self._hashes
        find_first = self._block_by_hash.setdefault
        events = self._events
        for block, block_hash in zip(blocks, block_hashes, strict=True):
            if hashes[block] is not None:
                continue
            hashes[block] = block_hash
            if find_first(block_hash, block) != block:
                self._duplicates.setdefault(block_hash, []).append(block)
            if events is not None:
                events.append(BlockCached(block, block_hash))

    def reset(self) -> bool:
        """Empty the prefix cache. As in vLLM, returns False without a change while any
        block is held.
        """
        if self.num_used:
            return False
        self._block_by_hash.clear()
        self._duplicates.clear()
        self._hashes = [None] * len(self._hashes)
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        return True

    def list_cached_blocks(self) -> dict[int, bytes]:
        """List every cached block with its hash: the state of an index that consumes
        all events.
        """
        return {
            block: block_hash
            for block, block_hash in enumerate(self._hashes)
            if block_hash is not None
        }

    def take_events(self) -> list[CacheEvent]:
        """Take the events since the last call, in order."""
        events = self._events or []
        self._events = None if self._events is None else []
        return events
