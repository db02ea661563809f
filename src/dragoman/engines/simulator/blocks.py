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


class BlockStored(Struct, frozen=True):
    """A block can be found under its hash from now on."""

    block: int
    hash: bytes


class BlockRemoved(Struct, frozen=True):
    """A block was taken for something else."""

    block: int
    hash: bytes


class AllBlocksCleared(Struct, frozen=True):
    """The whole prefix cache was reset."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class BlockPool:
    """`size` blocks, of which all but NULL_BLOCK can be had. record: keep events for `take_events`."""

    def __init__(self, size: int, *, record: bool = False) -> None:
        self._counts = [0] * size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, size))
        # By hash the block that is found, and those that wait behind it: hardly ever any, so that they cost nothing.
        self._found: dict[bytes, int] = {}
        self._behind: dict[bytes, list[int]] = {}
        self._hashes: list[bytes | None] = [None] * size
        self._events: list[CacheEvent] | None = [] if record else None

    @property
    def size(self) -> int:
        """Blocks that could ever be had at once."""
        return len(self._counts) - 1

    @property
    def free(self) -> int:
        """Blocks that can be had now, cached ones included."""
        return len(self._free)

    @property
    def used(self) -> int:
        return self.size - self.free

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1 (`vllm:kv_cache_usage_perc`)."""
        return self.used / self.size

    def count(self, block: int) -> int:
        """How many sequences hold this block."""
        return self._counts[block]

    def allocate(self, count: int) -> list[int]:
        """Hold so many blocks, forgetting what was cached in them. There must be as many free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} are free")
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._counts[block] = 1
            self._evict(block)
        return taken

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The cached blocks of the longest prefix of these hashes. They are not held yet."""
        found: list[int] = []
        for name in hashes:
            block = self._found.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are free: holding them takes as many from `free`."""
        return sum(self._counts[block] == 0 for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Use cached blocks, together with whoever else does."""
        for block in blocks:
            if self._counts[block] == 0:
                del self._free[block]
            self._counts[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Stop using the blocks of a sequence, given in its order.

        The last ones are reused first: a prefix is worth more than what follows it.
        """
        for block in reversed(blocks):
            if self._counts[block] < 1:
                raise ValueError(f"block {block} is not held")
            self._counts[block] -= 1
            if self._counts[block] == 0:
                self._free[block] = None

    def cache(self, block: int, name: bytes) -> None:
        """Let a held, full block be found under its hash."""
        if self._hashes[block] is not None:
            return
        self._hashes[block] = name
        if self._found.setdefault(name, block) != block:
            self._behind.setdefault(name, []).append(block)
        if self._events is not None:
            self._events.append(BlockStored(block, name))

    def reset(self) -> bool:
        """Empty the prefix cache; refused, as by vLLM, while any block is held."""
        if self.used:
            return False
        self._found.clear()
        self._behind.clear()
        self._hashes = [None] * len(self._hashes)
        if self._events is not None:
            self._events.append(AllBlocksCleared())
        return True

    def cached(self) -> dict[int, bytes]:
        """Every block that can be found, with its hash: what an index that hears all events knows."""
        return {block: name for block, name in enumerate(self._hashes) if name is not None}

    def take_events(self) -> list[CacheEvent]:
        """What happened since the last call, in order."""
        taken, self._events = self._events or [], None if self._events is None else []
        return taken

    def _evict(self, block: int) -> None:
        """It is found no more, if it was; the oldest of those behind it is."""
        name, self._hashes[block] = self._hashes[block], None
        if name is None:
            return
        behind = self._behind.get(name)
        if behind is None:
            del self._found[name]
        elif self._found[name] == block:
            self._found[name] = behind.pop(0)
        else:
            behind.remove(block)
        if behind == []:
            del self._behind[name]
        if self._events is not None:
            self._events.append(BlockRemoved(block, name))
