"""The pool of key-value blocks and the prefix cache over it, by vLLM's rules. Pure: it knows block numbers only.

A block is held by as many sequences as its count says, or it is free. A free block keeps its contents and its
hash until it is taken for something else; the one that was freed first goes first. Two blocks may hold the same
contents (both were computed before either was known): the older is found, until it is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec import Struct

NULL_BLOCK = 0
"""vLLM's placeholder; never allocated."""


class BlockCached(Struct, frozen=True):
    """A block can be found under its hash from now on."""

    block: int
    hash: bytes


class BlockRemoved(Struct, frozen=True):
    """A block was taken for something else."""

    block: int
    hash: bytes


class AllBlocksCleared(Struct, frozen=True):
    """The whole prefix cache was reset."""


CacheEvent = BlockCached | BlockRemoved | AllBlocksCleared


class SimulatedBlockPool:
    """`size` blocks, of which all but NULL_BLOCK can be had. record: keep events for `take_events`."""

    def __init__(self, size: int, *, record: bool = False) -> None:
        self._ref_counts = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        # By hash the block that is found, and those that wait behind it: hardly ever any, so that they cost nothing.
        self._block_by_hash: dict[bytes, int] = {}
        self._duplicates: dict[bytes, list[int]] = {}
        self._hashes: list[bytes | None] = [None] * size
        self._events: list[CacheEvent] | None = [] if record else None

    @property
    def size(self) -> int:
        """Blocks that could ever be had at once."""
        return len(self._ref_counts) - 1

    @property
    def num_free(self) -> int:
        """Blocks that can be had now, cached ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.size - self.num_free

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1 (`vllm:kv_cache_usage_perc`)."""
        return self.num_used / self.size

    def get_ref_count(self, block: int) -> int:
        """How many sequences hold this block."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Hold so many blocks, forgetting what was cached in them. There must be as many free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            self._evict(block)
        return blocks

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The cached blocks of the longest prefix of these hashes. They are not held yet."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_by_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free: holding them takes as many from `free`."""
        return sum(self._ref_counts[block] == 0 for block in blocks)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Use cached blocks, together with whoever else does."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Stop using the blocks of a sequence, given in its order.

        The last ones are reused first: a prefix is worth more than what follows it.
        """
        for block in reversed(blocks):
            if self._ref_counts[block] < 1:
                raise ValueError(f"block {block} is not held")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                self._free[block] = None

    def cache(self, block: int, block_hash: bytes) -> None:
        """Let a held, full block be found under its hash."""
        if self._hashes[block] is not None:
            return
        self._hashes[block] = block_hash
        if self._block_by_hash.setdefault(block_hash, block) != block:
            self._duplicates.setdefault(block_hash, []).append(block)
        if self._events is not None:
            self._events.append(BlockCached(block, block_hash))

    def reset(self) -> bool:
        """Empty the prefix cache; refused, as by vLLM, while any block is held."""
        if self.num_used:
            return False
        self._block_by_hash.clear()
        self._duplicates.clear()
        self._hashes = [None] * len(self._hashes)
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        return True

    def list_cached_blocks(self) -> dict[int, bytes]:
        """Every block that can be found, with its hash: what an index that hears all events knows."""
        return {block: block_hash for block, block_hash in enumerate(self._hashes) if block_hash is not None}

    def take_events(self) -> list[CacheEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events or [], None if self._events is None else []
        return events

    def _evict(self, block: int) -> None:
        """It is found no more, if it was; the oldest of those behind it is."""
        block_hash, self._hashes[block] = self._hashes[block], None
        if block_hash is None:
            return
        duplicates = self._duplicates.get(block_hash)
        if duplicates is None:
            del self._block_by_hash[block_hash]
        elif self._block_by_hash[block_hash] == block:
            self._block_by_hash[block_hash] = duplicates.pop(0)
        else:
            duplicates.remove(block)
        if duplicates == []:
            del self._duplicates[block_hash]
        if self._events is not None:
            self._events.append(BlockRemoved(block, block_hash))
