"""The block tables of sequences over a block pool, by the rules of vLLM's KV cache
manager.

A model whose layers all attend to the whole context has one table per sequence. Layers
with a sliding window, with chunks, or with a state of fixed size have tables of their
own (vLLM's hybrid KV cache manager): their blocks are freed once no later token attends
to them, and the prefix cache has a hit as far as every table has one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import lcm
from typing import Protocol

from msgspec import Struct

from .block_pool import NULL_BLOCK, SimulatedBlockPool
from .scheduler_config import KvCacheGroup, SimulatedSchedulerConfig
from .sequence import BlockTable, SimulatedSequence


class CachedPrefix(Struct, frozen=True):
    """The cached blocks of a sequence's first `num_tokens` tokens.

    blocks: of each table; NULL_BLOCK stands for blocks that no later token attends to.
    junction: where a prefix ends that other sequences share, but only some tables have
        cached; 0 if there is none.
    """

    num_tokens: int
    blocks: tuple[list[int], ...]
    junction: int = 0


class KvCache(Protocol):
    """What the scheduler asks of the block tables."""

    def begin_step(self) -> None: ...

    def find(self, sequence: SimulatedSequence) -> CachedPrefix:
        """Find the longest cached prefix, which never includes the last token."""
        ...

    def can_admit(
        self, prefix: CachedPrefix, num_tokens: int, num_reserved: int, num_free: int
    ) -> bool:
        """Whether `num_free` blocks are enough for a waiting sequence to have
        `num_tokens`, and for what it holds at most at a time until it has `num_reserved`.
        """
        ...

    def acquire(self, sequence: SimulatedSequence, prefix: CachedPrefix) -> None:
        """Give a waiting sequence the blocks of its prefix."""
        ...

    def allocate(self, sequence: SimulatedSequence, num_tokens: int) -> bool:
        """Free the blocks to which no later token attends, then allocate those that a
        sequence lacks to have `num_tokens`. Returns False if too few are free.
        """
        ...

    def cache(self, sequence: SimulatedSequence, num_tokens: int) -> None:
        """Cache the blocks that the first `num_tokens` tokens fill."""
        ...

    def release(self, sequence: SimulatedSequence) -> None:
        """Free all blocks of a sequence."""
        ...

    def align_chunk(self, sequence: SimulatedSequence, begin: int, count: int) -> int:
        """Shorten a chunk so that it ends where a state can be cached; 0 is none."""
        ...


class SingleTableCache:
    """One table, of layers that attend to the whole context."""

    def __init__(self, config: SimulatedSchedulerConfig, pool: SimulatedBlockPool) -> None:
        self._pool = pool
        self._block_size = config.block_size
        self._is_caching = config.enable_prefix_caching

    def begin_step(self) -> None:
        pass

    def find(self, sequence: SimulatedSequence) -> CachedPrefix:
        # The last token must be computed: its logits give the next token, and the cache
        # has only keys and values.
        num_full = (sequence.num_tokens - 1) // self._block_size
        if not num_full or not self._is_caching:
            return CachedPrefix(0, ([],))
        blocks = self._pool.find(sequence.contents.iterate_block_hashes(0, num_full))
        return CachedPrefix(len(blocks) * self._block_size, (blocks,))

    def can_admit(
        self, prefix: CachedPrefix, num_tokens: int, num_reserved: int, num_free: int
    ) -> bool:
        # It holds all that it ever takes.
        missing = -(-max(num_tokens, num_reserved) // self._block_size)
        (hits,) = prefix.blocks
        if hits:
            # A cached block that no sequence holds counts as free; acquiring it reduces
            # the free blocks by one.
            missing += self._pool.count_free(hits) - len(hits)
        return missing <= num_free

    def acquire(self, sequence: SimulatedSequence, prefix: CachedPrefix) -> None:
        (hits,) = prefix.blocks
        if hits:
            self._pool.acquire(hits)
        sequence.blocks = hits
        sequence.num_hashed_blocks = len(hits)

    def allocate(self, sequence: SimulatedSequence, num_tokens: int) -> bool:
        missing = -(-num_tokens // self._block_size) - len(sequence.blocks)
        if missing > 0:
            if missing > self._pool.num_free:
                return False
            sequence.blocks += self._pool.allocate(missing)
        return True

    def cache(self, sequence: SimulatedSequence, num_tokens: int) -> None:
        if not self._is_caching:
            return
        num_full = num_tokens // self._block_size
        first = sequence.num_hashed_blocks
        if num_full <= first:
            return
        hashes = sequence.contents.iterate_block_hashes(first, num_full)
        self._pool.cache_run(sequence.blocks[first:num_full], hashes)
        sequence.num_hashed_blocks = num_full

    def release(self, sequence: SimulatedSequence) -> None:
        self._pool.release(sequence.blocks)

    def align_chunk(
        self,
        sequence: SimulatedSequence,  # noqa: ARG002 - there is no state to cache
        begin: int,  # noqa: ARG002
        count: int,
    ) -> int:
        return count


class GroupedCache:
    """Several tables, each of layers of one kind."""

    def __init__(self, config: SimulatedSchedulerConfig, pool: SimulatedBlockPool) -> None:
        self._pool = pool
        self._is_caching = config.enable_prefix_caching
        self._kinds = list[_Kind]()
        num_tables = 0
        for group in config.kv_cache_groups:
            tables = range(num_tables, num_tables + group.tables)
            self._kinds.append(_build_kind(group, tables, config, pool))
            num_tables += group.tables
        self._kind_by_table = [kind for kind in self._kinds for _ in kind.tables]
        # Full attention first, whose hit bounds that of the others.
        self._lookup_order = sorted(self._kinds, key=lambda kind: not isinstance(kind, _Full))
        self._alignment = lcm(*(kind.block_size for kind in self._kinds))
        self._states = next((kind for kind in self._kinds if isinstance(kind, _States)), None)
        self._block_size = config.block_size
        threshold = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._max_chunk = min(config.max_num_batched_tokens, threshold)

    def begin_step(self) -> None:
        for kind in self._kinds:
            kind.begin_step()

    def find(self, sequence: SimulatedSequence) -> CachedPrefix:
        tables: list[list[int]] = [[] for _ in self._kind_by_table]
        if not self._is_caching:
            return CachedPrefix(0, tuple(tables))
        order = self._lookup_order
        # One pass over full attention and one other kind is exact.
        is_simple = len(order) == 1 or (len(order) == 2 and isinstance(order[0], _Full))
        get_hash = sequence.contents.get_block_hash
        hit = sequence.num_tokens - 1
        longest = full_hit = 0
        has_full = False
        while True:
            current = hit
            for kind in order:
                if isinstance(kind, _Full) and has_full:
                    # A shorter prefix of these hits is a hit too.
                    current = min(current, full_hit)
                    continue
                found, current = kind.find(get_hash, current, self._alignment)
                if isinstance(kind, _Full):
                    has_full = True
                    full_hit = current
                longest = max(longest, current)
                for table, blocks in zip(kind.tables, found, strict=True):
                    tables[table] = blocks
            if current >= hit:
                break
            hit = current
            if is_simple:
                break
        for kind in self._kinds:
            if isinstance(kind, _Full):
                for table in kind.tables:
                    del tables[table][-(-hit // kind.block_size) :]
        return CachedPrefix(hit, tuple(tables), longest if longest > hit else 0)

    def can_admit(
        self, prefix: CachedPrefix, num_tokens: int, num_reserved: int, num_free: int
    ) -> bool:
        return (
            not num_reserved or self._count(prefix, num_reserved, is_whole=True) <= num_free
        ) and self._count(prefix, num_tokens, is_whole=False) <= num_free

    def _count(self, prefix: CachedPrefix, num_tokens: int, *, is_whole: bool) -> int:
        """Count the free blocks that a waiting sequence takes to have `num_tokens`.

        is_whole: count what it holds at most at a time, until all of them are computed.
        """
        return sum(
            kind.count_for_admission(hits, prefix.num_tokens, num_tokens, is_whole=is_whole)
            for kind, hits in zip(self._kind_by_table, prefix.blocks, strict=True)
        )

    def acquire(self, sequence: SimulatedSequence, prefix: CachedPrefix) -> None:
        sequence.junction = prefix.junction
        sequence.tables = [
            kind.acquire(hits, prefix.num_tokens)
            for kind, hits in zip(self._kind_by_table, prefix.blocks, strict=True)
        ]

    def allocate(self, sequence: SimulatedSequence, num_tokens: int) -> bool:
        tables = list(zip(self._kind_by_table, sequence.tables, strict=True))
        # A running step still reads what its tokens attend to, and rejected drafts are
        # computed again.
        num_ended = max(0, sequence.num_computed_tokens - sequence.num_in_flight)
        for kind, table in tables:
            kind.free_skipped(table, num_ended)
        missing = sum(kind.count_missing(table, num_tokens) for kind, table in tables)
        if missing > self._pool.num_free:
            return False
        for kind, table in tables:
            kind.allocate(table, num_tokens)
        return True

    def cache(self, sequence: SimulatedSequence, num_tokens: int) -> None:
        if not self._is_caching:
            return
        num_tokens -= num_tokens % self._alignment
        # Where a later request can resume: at the end of this prompt, whose last token
        # it computes, and at a junction.
        boundaries = [sequence.num_prompt_tokens - 1]
        if sequence.junction:
            boundaries.append(sequence.junction)
        get_hash = sequence.contents.get_block_hash
        tables = zip(self._kind_by_table, sequence.tables, strict=True)
        for number, (kind, table) in enumerate(tables):
            kind.cache(table, number, num_tokens, get_hash, self._alignment, boundaries)

    def release(self, sequence: SimulatedSequence) -> None:
        for table in sequence.tables:
            self._pool.release([block for block in table.blocks if block != NULL_BLOCK])
        sequence.tables = []

    def align_chunk(self, sequence: SimulatedSequence, begin: int, count: int) -> int:
        if self._states is None or not self._is_caching:
            return count
        block_size = self._block_size
        num_known = sequence.num_prompt_tokens + sequence.num_output_tokens
        prefill_end = max(sequence.num_prompt_tokens, num_known - 1)
        if begin >= prefill_end:
            return count
        end = begin + count
        # A state is written at the end of a chunk, and cached at the end of a block.
        if end < prefill_end:
            aligned = end // block_size * block_size
            if aligned > begin or block_size <= self._max_chunk:
                end = aligned
        junction = sequence.junction
        stops = (
            (begin // block_size + 1) * block_size if begin % block_size else 0,
            (num_known - 1) // block_size * block_size,
            begin + (junction - begin) // block_size * block_size if begin < junction < end else 0,
        )
        end = min((stop for stop in stops if begin < stop < end), default=end)
        return max(0, end - begin)


GetHash = Callable[[int], bytes]
"""Returns the hash of the block at an index."""


class _Kind(ABC):
    """The tables of layers of one kind, by the rules of one of vLLM's
    `SingleTypeKVCacheManager`.

    block_size: tokens of a block.
    tables: numbers of its tables, which have the same contents in other blocks.
    """

    def __init__(
        self,
        group: KvCacheGroup,
        tables: range,
        config: SimulatedSchedulerConfig,
        pool: SimulatedBlockPool,
    ) -> None:
        self.tables = tables
        self.block_size = group.block_size or config.block_size
        self._pool = pool
        # A block of several hashed blocks has the hash of the last one.
        self._hashes_per_block = self.block_size // config.block_size
        self._window = group.window
        self._interval = config.prefix_cache_retention_interval
        self._max_held = group.count_held_blocks(config)
        """Most blocks that a sequence holds in a table; None if it holds all."""

    def begin_step(self) -> None:  # noqa: B027 - only states have something to do
        pass

    @abstractmethod
    def find(
        self, get_hash: GetHash, max_length: int, alignment: int
    ) -> tuple[list[list[int]], int]:
        """Find the longest hit of at most `max_length` tokens: the blocks of each
        table, and its length in tokens, a multiple of `alignment`.
        """

    def count_skipped(self, num_computed: int) -> int:  # noqa: ARG002 - of a window only
        """Count the tokens to which none attends after the first `num_computed`."""
        return 0

    def select_reachable(
        self,
        begin: int,  # noqa: ARG002 - of windows and states only
        end: int,  # noqa: ARG002
        alignment: int,  # noqa: ARG002
        boundaries: Sequence[int],  # noqa: ARG002
    ) -> Sequence[bool] | None:
        """Select the blocks from `begin` to `end` that a hit may need; None is all."""
        return None

    def count_for_admission(
        self, hits: list[int], num_cached: int, num_tokens: int, *, is_whole: bool
    ) -> int:
        required = -(-num_tokens // self.block_size)
        if is_whole and self._max_held is not None:
            required = min(required, self._max_held)
        skipped = self.count_skipped(num_cached) // self.block_size
        missing = max(0, required - max(skipped, len(hits)))
        return missing + self._count_free(hits[max(0, skipped) :])

    def acquire(self, hits: list[int], num_cached: int) -> BlockTable:
        skipped = max(0, self.count_skipped(num_cached) // self.block_size)
        remaining = hits[skipped:]
        self._pool.acquire(block for block in remaining if block != NULL_BLOCK)
        blocks = [NULL_BLOCK] * skipped + remaining
        return BlockTable(blocks, len(blocks))

    def free_skipped(self, table: BlockTable, num_computed: int) -> None:
        end = min(self.count_skipped(num_computed) // self.block_size, len(table.blocks))
        freed = list[int]()
        for index in range(end - 1, -1, -1):
            if table.blocks[index] == NULL_BLOCK:
                break  # those before it were freed earlier
            freed.append(table.blocks[index])
            table.blocks[index] = NULL_BLOCK
        self._pool.release(freed[::-1])

    def count_missing(self, table: BlockTable, num_tokens: int) -> int:
        return max(0, -(-num_tokens // self.block_size) - len(table.blocks))

    def allocate(self, table: BlockTable, num_tokens: int) -> None:
        table.blocks += self._pool.allocate(self.count_missing(table, num_tokens))

    def cache(
        self,
        table: BlockTable,
        number: int,
        num_tokens: int,
        get_hash: GetHash,
        alignment: int,
        boundaries: Sequence[int],
    ) -> None:
        begin = table.num_cached
        end = num_tokens // self.block_size
        if begin >= end:
            return
        reachable = self.select_reachable(begin, end, alignment, boundaries)
        for index in range(begin, end):
            block = table.blocks[index]
            if block != NULL_BLOCK and (reachable is None or reachable[index - begin]):
                self.cache_block(block, self._build_key(get_hash, index, number))
        table.num_cached = end

    def cache_block(self, block: int, key: bytes) -> None:
        self._pool.cache(block, key)

    def _build_key(self, get_hash: GetHash, index: int, table: int) -> bytes:
        """Build the key of a table's block: its hash and the table's number."""
        return get_hash((index + 1) * self._hashes_per_block - 1) + bytes((table,))

    def _find_block(self, get_hash: GetHash, index: int) -> list[int] | None:
        """Find the cached blocks of all tables at this index; None if one lacks it."""
        blocks = list[int]()
        for table in self.tables:
            block = self._pool.get(self._build_key(get_hash, index, table))
            if block is None:
                return None
            blocks.append(block)
        return blocks

    def _find_run(self, get_hash: GetHash, indexes: range) -> list[list[int]]:
        """Find the cached blocks up to the first index that lacks one."""
        found = list[list[int]]()
        for index in indexes:
            blocks = self._find_block(get_hash, index)
            if blocks is None:
                break
            found.append(blocks)
        return found

    def _count_free(self, blocks: Sequence[int]) -> int:
        return self._pool.count_free(block for block in blocks if block != NULL_BLOCK)


class _Full(_Kind):
    """Layers that attend to the whole context."""

    def find(
        self, get_hash: GetHash, max_length: int, alignment: int
    ) -> tuple[list[list[int]], int]:
        found = self._find_run(get_hash, range(max_length // self.block_size))
        length = len(found) * self.block_size
        length -= length % alignment
        return _list_by_table(self.tables, found[: length // self.block_size]), length


class _Windowed(_Kind):
    """Layers with a sliding window: a token attends to itself and the `window` - 1
    tokens before it.
    """

    def __init__(
        self,
        group: KvCacheGroup,
        tables: range,
        config: SimulatedSchedulerConfig,
        pool: SimulatedBlockPool,
    ) -> None:
        super().__init__(group, tables, config, pool)
        self._needed = -(-(group.window - 1) // self.block_size)
        """Consecutive blocks that a hit needs at its end."""

    def find(
        self, get_hash: GetHash, max_length: int, alignment: int
    ) -> tuple[list[list[int]], int]:
        num_blocks = max_length // self.block_size
        empty = [NULL_BLOCK] * len(self.tables)
        found = [empty] * num_blocks
        consecutive = 0
        for index in range(num_blocks - 1, -1, -1):
            blocks = self._find_block(get_hash, index)
            if blocks is None:
                consecutive = 0
                continue
            # A hit must end at a multiple of the alignment.
            if not consecutive and (index + 1) * self.block_size % alignment:
                continue
            found[index] = blocks
            consecutive += 1
            if consecutive >= self._needed:
                del found[index + consecutive :]
                return _list_by_table(self.tables, found), len(found) * self.block_size
        # The beginning is a hit even if it is shorter than the window.
        per_alignment = alignment // self.block_size
        del found[consecutive - consecutive % per_alignment :]
        return _list_by_table(self.tables, found), len(found) * self.block_size

    def count_skipped(self, num_computed: int) -> int:
        return max(0, num_computed - self._window + 1)

    def select_reachable(
        self, begin: int, end: int, alignment: int, boundaries: Sequence[int]
    ) -> Sequence[bool] | None:
        reachable = [False] * (end - begin)
        segment = alignment if self._interval is None else self._interval
        if segment:
            # The tail of every segment, which is long enough for a hit at its end.
            per_segment = segment // self.block_size
            if self._needed >= per_segment:
                return None
            for index in range(begin, end):
                reachable[index - begin] = index % per_segment >= per_segment - self._needed
        if self._interval is not None:
            for boundary in boundaries:
                last = boundary // alignment * alignment // self.block_size
                for index in range(max(begin, last - self._needed), min(end, last)):
                    reachable[index - begin] = True
        return reachable


class _Chunked(_Kind):
    """Layers with chunked local attention: a token attends to those before it in its
    chunk of `window` tokens.
    """

    def find(
        self, get_hash: GetHash, max_length: int, alignment: int
    ) -> tuple[list[list[int]], int]:
        assert alignment == self.block_size, "chunks do not work with other block sizes"
        begin = self.count_skipped(max_length) // self.block_size
        found = [[NULL_BLOCK] * len(self.tables)] * begin
        found += self._find_run(get_hash, range(begin, max_length // self.block_size))
        return _list_by_table(self.tables, found), len(found) * self.block_size

    def count_skipped(self, num_computed: int) -> int:
        return num_computed // self._window * self._window


class _States(_Kind):
    """Layers with a state of fixed size (linear attention, Mamba): the state after a
    chunk is in the block in which the chunk ends, vLLM's `align` mode. Without prefix
    caching the sequence has one block.
    """

    def __init__(
        self,
        group: KvCacheGroup,
        tables: range,
        config: SimulatedSchedulerConfig,
        pool: SimulatedBlockPool,
    ) -> None:
        super().__init__(group, tables, config, pool)
        self._is_caching = config.enable_prefix_caching
        if not self._is_caching:
            self.block_size = config.max_model_len or config.num_gpu_blocks * config.block_size
        self._cached_in_step = set[bytes]()

    def begin_step(self) -> None:
        self._cached_in_step.clear()

    def find(
        self, get_hash: GetHash, max_length: int, alignment: int
    ) -> tuple[list[list[int]], int]:
        for index in range(max_length // self.block_size - 1, -1, -1):
            blocks = self._find_block(get_hash, index)
            if blocks is not None and (index + 1) * self.block_size % alignment == 0:
                found = [[NULL_BLOCK] * index + [block] for block in blocks]
                return found, (index + 1) * self.block_size
        return [[] for _ in self.tables], 0

    def count_skipped(self, num_computed: int) -> int:
        return num_computed - 1

    def select_reachable(
        self, begin: int, end: int, alignment: int, boundaries: Sequence[int]
    ) -> Sequence[bool] | None:
        if self._interval is None:
            return None
        reachable = [False] * (end - begin)
        if self._interval:
            per_segment = self._interval // self.block_size
            for index in range(begin, end):
                reachable[index - begin] = (index + 1) % per_segment == 0
        for boundary in boundaries:
            last = boundary // alignment * alignment // self.block_size - 1
            if begin <= last < end:
                reachable[last - begin] = True
        return reachable

    def count_for_admission(
        self, hits: list[int], num_cached: int, num_tokens: int, *, is_whole: bool
    ) -> int:
        if not self._is_caching:
            return super().count_for_admission(hits, num_cached, num_tokens, is_whole=is_whole)
        # A state that this step computes cannot be read in the same step.
        if hits and self._pool.get_hash(hits[-1]) in self._cached_in_step:
            return self._pool.size + 1
        missing = -(-num_tokens // self.block_size) - len(hits)
        return min(1, max(0, missing)) + self._count_free(hits)

    def free_skipped(self, table: BlockTable, num_computed: int) -> None:
        if not self._is_caching:
            return
        blocks = table.blocks
        end = min(self.count_skipped(num_computed) // self.block_size, len(blocks))
        if end > table.num_retired:
            freed = [block for block in blocks[table.num_retired : end] if block != NULL_BLOCK]
            blocks[table.num_retired : end] = [NULL_BLOCK] * (end - table.num_retired)
            table.num_retired = end
            self._pool.release(freed)
        # The state before the last one was needed to compute that one only.
        last = table.last_state
        if (
            last is not None
            and last < -(-num_computed // self.block_size) - 1
            and blocks[last] != NULL_BLOCK
        ):
            self._pool.release([blocks[last]])
            blocks[last] = NULL_BLOCK

    def count_missing(self, table: BlockTable, num_tokens: int) -> int:
        missing = super().count_missing(table, num_tokens)
        return min(1, missing) if self._is_caching else missing

    def allocate(self, table: BlockTable, num_tokens: int) -> None:
        if not self._is_caching:
            super().allocate(table, num_tokens)
            return
        required = -(-num_tokens // self.block_size)
        length = len(table.blocks)
        if required <= length:
            return
        if length:
            table.last_state = length - 1
        table.blocks += [NULL_BLOCK] * (required - 1 - length)
        table.blocks += self._pool.allocate(1)

    def cache_block(self, block: int, key: bytes) -> None:
        super().cache_block(block, key)
        self._cached_in_step.add(key)


_KINDS: dict[str, type[_Kind]] = {
    "full_attention": _Full,
    "sliding_window": _Windowed,
    "chunked_local": _Chunked,
    "state": _States,
}


def _build_kind(
    group: KvCacheGroup, tables: range, config: SimulatedSchedulerConfig, pool: SimulatedBlockPool
) -> _Kind:
    return _KINDS[group.kind](group, tables, config, pool)


def _list_by_table(tables: range, found: list[list[int]]) -> list[list[int]]:
    """Turn the blocks of each index into those of each table."""
    return [[blocks[position] for blocks in found] for position in range(len(tables))]


def build_kv_cache(config: SimulatedSchedulerConfig, pool: SimulatedBlockPool) -> KvCache:
    """Build the block tables that a configuration has."""
    if not config.kv_cache_groups:
        return SingleTableCache(config, pool)
    return GroupedCache(config, pool)
