"""The pool of KV cache blocks with its prefix cache, by vLLM's rules.

It handles block numbers only and does no I/O. A full block is identified by the hash of
its tokens and of all tokens before them. A free block keeps its contents and its hash
until it is reallocated; the least recently used block is evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_SIZE = 16
"""Tokens in a block of the pool; vLLM's default block size."""

NULL_BLOCK = 0
"""Pads block tables. Never allocated, so it always holds zeros."""


class BlockPool:
    """A pool of `size` blocks; all but NULL_BLOCK can be allocated.

    A block is either held (its reference count is the number of users) or free; a free
    block may still be cached.
    """

    def __init__(self, size: int) -> None:
        self._ref_counts = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        self._block_by_hash: dict[bytes, int] = {}
        self._hash_by_block: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Number of free blocks, cached ones included."""
        return len(self._free)

    @property
    def size(self) -> int:
        """Number of blocks that can be allocated in total."""
        return len(self._ref_counts) - 1

    def allocate(self, count: int) -> list[int]:
        """Allocate blocks and evict what was cached in them. At least `count` blocks
        must be free.
        """
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            evicted = self._hash_by_block.pop(block, None)
            if evicted is not None:
                del self._block_by_hash[evicted]
        return blocks

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Find the cached blocks of the longest prefix of these hashes. Does not
        acquire them.
        """
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_by_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def find_block(self, block_hash: bytes) -> int | None:
        """Find the block that is cached under this hash."""
        return self._block_by_hash.get(block_hash)

    def count_free(self, blocks: Iterable[int]) -> int:
        """Count how many of these blocks are free: acquiring them reduces `num_free` by
        that number.
        """
        return sum(block in self._free for block in blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Increment the reference counts of cached blocks."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Decrement the reference counts of a sequence's blocks, given in sequence
        order.

        The last blocks are reused first, since a prefix has more cache hits than what
        follows it; blocks without cached contents are reused before all others.
        """
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None
                if block not in self._hash_by_block:
                    self._free.move_to_end(block, last=False)

    def cache(self, block: int, block_hash: bytes) -> None:
        """Register a held, full block under its hash. If another block has the same
        contents, that one stays.
        """
        # Sequences that compute the same prompt at once each have a copy; the copies
        # are not merged, since block tables of running sequences do not change.
        if block_hash not in self._block_by_hash and block not in self._hash_by_block:
            self._block_by_hash[block_hash] = block
            self._hash_by_block[block] = block_hash

    def forget(self, blocks: Iterable[int]) -> None:
        """Drop the cached contents of these blocks. Held blocks stay held."""
        for block in blocks:
            block_hash = self._hash_by_block.pop(block, None)
            if block_hash is not None:
                del self._block_by_hash[block_hash]

    def clear_cache(self) -> None:
        """Empty the prefix cache. Held blocks stay held."""
        self._block_by_hash.clear()
        self._hash_by_block.clear()

    def reset(self) -> None:
        """Free all blocks and empty the prefix cache."""
        self._ref_counts = [0] * len(self._ref_counts)
        self._free = OrderedDict.fromkeys(range(1, len(self._ref_counts)))
        self._block_by_hash.clear()
        self._hash_by_block.clear()
