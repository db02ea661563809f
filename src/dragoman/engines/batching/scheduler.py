"""Which sequence computes how many tokens in the next step, by the rules of vLLM's V1 scheduler. Pure.

Those that run come first; what is left of the step's budget goes to those that wait. Prompts are computed in
pieces beside the others' decoding. When the pool runs out the least urgent sequence gives up its blocks and
is computed again later (preemption by recompute). Knows nothing of models or time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as Tokens
from itertools import takewhile
from typing import Protocol

from msgspec import Struct

from .blocks import BLOCK_SIZE, BlockPool, hash_prefix
from .sequence import Sequence


class SchedulerConfig(Struct, frozen=True):
    """Limits of a step: max_num_batched_tokens is at least max_num_seqs, so that all that decode do so in every
    step. max_step_pairs: query-key pairs of prompts' pieces, so that a piece late in a long
    prompt takes no longer than an early one, and the others' decoding does not stutter.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_step_pairs: int = 1 << 20
    enable_prefix_caching: bool = True


class Chunk(Struct, frozen=True):
    """Tokens begin to end of a sequence are computed in this step."""

    sequence: Sequence
    begin: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.begin


class BlockStore(Protocol):
    """Blocks that are kept outside of the pool, by their hashes."""

    def contains(self, block_hash: bytes) -> bool: ...

    def load(self, hashes: Tokens[bytes]) -> list[bytes]:
        """The contents of the longest prefix of these blocks that is there."""
        ...

    def enqueue(self, block_hash: bytes, block: int) -> None:
        """What this block of the pool holds after the step may be kept."""
        ...

    def clear(self) -> None: ...


class BlockLoad(Struct, frozen=True):
    """What a block of the pool has to hold before the step."""

    block: int
    contents: bytes


class _Budget:
    """What is left of a step."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._tokens = config.max_num_batched_tokens
        self._pairs = config.max_step_pairs

    def grant(self, sequence: Sequence, computed: int) -> int:
        """Tokens that the sequence may compute: all that it needs, if there are as many."""
        count = min(sequence.num_tokens - computed, self._tokens)
        if count <= 1:
            return count
        if self._pairs <= 0:
            return 0
        return min(count, max(self._pairs // (computed + count), BLOCK_SIZE))

    def spend(self, chunk: Chunk, sign: int = 1) -> None:
        self._tokens -= sign * chunk.num_tokens
        if chunk.num_tokens > 1:
            self._pairs -= sign * chunk.num_tokens * chunk.end


class Scheduler:
    """The waiting queue and the running set, over a pool that holds at least one longest sequence."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool, store: BlockStore | None = None) -> None:
        self._config = config
        self._pool = pool
        self._store = store
        self._loads: list[BlockLoad] = []
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=lambda waiting: waiting.rank)

    def remove(self, sequence: Sequence) -> None:
        """Finished or aborted: its blocks are free at once."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._free(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def clear_cache(self) -> None:
        """Find nothing any more of what was computed so far."""
        self._pool.clear_cache()
        if self._store:
            self._store.clear()

    def restart_all(self) -> None:
        """All that runs is to be computed again from its beginning, and nothing that was computed so far is found."""
        for sequence in list(self._running):
            self._requeue(sequence)
            sequence.reset_prompt_logprobs()
        self._pool.reset()

    def disable_offload(self) -> None:
        """From now on nothing is kept outside of the pool, nor found there."""
        self._store = None

    def count_cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """How many tokens of a prompt would be found now. May be asked on any thread: it reads, and no more."""
        if not self._config.enable_prefix_caching:
            return 0
        hashes = list(hash_prefix(prompt, cache_salt))
        num_cached = len(self._pool.find(hashes))
        if self._store:
            num_cached += sum(1 for _ in takewhile(self._store.contains, hashes[num_cached:]))
        return num_cached * BLOCK_SIZE

    def reset(self) -> list[Sequence]:
        """After a step that failed: everything that ran is out, and nothing about the pool is trusted."""
        failed, self._running = self._running, []
        self._loads = []
        self._pool.reset()
        return failed

    def schedule(self) -> list[Chunk]:
        """The next step. Whoever computes its last token in it samples the next one."""
        budget = _Budget(self._config)
        preempted = self.num_preemptions
        chunks = self._schedule_running(budget)
        for chunk in chunks:
            self._cache_full_blocks(chunk)
        if preempted == self.num_preemptions:
            chunks += self._admit(budget)
        return chunks

    def take_loads(self) -> list[BlockLoad]:
        """Those of the step that was scheduled last."""
        loads, self._loads = self._loads, []
        return loads

    def commit(self, chunks: list[Chunk]) -> None:
        """The step was computed."""
        for chunk in chunks:
            chunk.sequence.num_computed_tokens = chunk.end

    def _schedule_running(self, budget: _Budget) -> list[Chunk]:
        chunks: dict[int, Chunk] = {}
        preempted: set[int] = set()
        # Those that decode before those with a piece of their prompt to compute: they must not have to wait.
        for sequence in sorted(self._running, key=_is_prefilling):
            if sequence.key in preempted:
                continue
            count = budget.grant(sequence, sequence.num_computed_tokens)
            while count and not self._allocate(sequence, count):
                victim = self._preempt()
                preempted.add(victim.key)
                if victim is sequence:
                    count = 0
                elif victim.key in chunks:
                    budget.spend(chunks.pop(victim.key), sign=-1)
            if count:
                chunks[sequence.key] = chunk = _build_chunk(sequence, count)
                budget.spend(chunk)
        return list(chunks.values())

    def _admit(self, budget: _Budget) -> list[Chunk]:
        """Take from the queue while there is room; its head is never skipped."""
        chunks: list[Chunk] = []
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            sequence = self._waiting[0]
            hits = self._find_cached_blocks(sequence)
            count = budget.grant(sequence, len(hits) * BLOCK_SIZE)
            missing = -(-sequence.num_tokens // BLOCK_SIZE) - len(hits)
            if not count or missing + self._pool.count_free(hits) > self._pool.num_free:
                break
            self._running.append(self._waiting.pop(0))
            self._start(sequence, hits)
            count = budget.grant(sequence, sequence.num_computed_tokens)
            self._allocate(sequence, count)
            chunks.append(_build_chunk(sequence, count))
            budget.spend(chunks[-1])
            # Already now, as vLLM does: all keys of a step are written before any is read, so that choices
            # of one request that start together share their prompt.
            self._cache_full_blocks(chunks[-1])
        return chunks

    def _start(self, sequence: Sequence, hits: list[int]) -> None:
        self._pool.acquire(hits)
        sequence.blocks = hits + self._load_offloaded(sequence, len(hits))
        sequence.num_computed_tokens = len(sequence.blocks) * BLOCK_SIZE
        if not sequence.was_admitted:
            sequence.was_admitted, sequence.cached_tokens = True, sequence.num_computed_tokens

    def _load_offloaded(self, sequence: Sequence, num_cached: int) -> list[int]:
        """Blocks for what is kept outside of the pool of its beginning, after those that were found in it."""
        if not (
            self._store and sequence.can_offload and self._config.enable_prefix_caching and sequence.can_read_cache
        ):
            return []
        hashes = sequence.compute_block_hashes((sequence.num_tokens - 1) // BLOCK_SIZE)[num_cached:]
        contents = self._store.load(hashes)
        blocks = self._pool.allocate(len(contents))
        for block_hash, block, data in zip(hashes, blocks, contents, strict=False):
            self._pool.cache(block, block_hash)
            self._loads.append(BlockLoad(block, data))
        return blocks

    def _find_cached_blocks(self, sequence: Sequence) -> list[int]:
        """Cached blocks of its beginning; at least the last token is left to compute."""
        if not (self._config.enable_prefix_caching and sequence.can_read_cache):
            return []
        return self._pool.find(sequence.compute_block_hashes((sequence.num_tokens - 1) // BLOCK_SIZE))

    def _allocate(self, sequence: Sequence, count: int) -> bool:
        """Blocks for so many more tokens; False if there are not enough."""
        missing = -(-(sequence.num_computed_tokens + count) // BLOCK_SIZE) - len(sequence.blocks)
        if missing > self._pool.num_free:
            return False
        sequence.blocks += self._pool.allocate(missing)
        return True

    def _cache_full_blocks(self, chunk: Chunk) -> None:
        if not self._config.enable_prefix_caching:
            return
        first, end = chunk.begin // BLOCK_SIZE, chunk.end // BLOCK_SIZE
        if first == end:
            return
        hashes = chunk.sequence.compute_block_hashes(end)
        for index in range(first, end):
            self._pool.cache(chunk.sequence.blocks[index], hashes[index])
            if self._store and chunk.sequence.can_offload:
                self._store.enqueue(hashes[index], chunk.sequence.blocks[index])

    def _preempt(self) -> Sequence:
        """Put the least urgent sequence back into the queue."""
        victim = max(self._running, key=lambda running: running.rank)
        self.num_preemptions += 1
        self._requeue(victim)
        return victim

    def _requeue(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        self.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed_tokens = 0


def _build_chunk(sequence: Sequence, count: int) -> Chunk:
    return Chunk(sequence, sequence.num_computed_tokens, sequence.num_computed_tokens + count)


def _is_prefilling(sequence: Sequence) -> bool:
    return sequence.num_tokens - sequence.num_computed_tokens > 1
