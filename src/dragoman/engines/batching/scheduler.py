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

from .blocks import BLOCK_SIZE, BlockPool, prefix_hashes
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


class Offload(Protocol):
    """Blocks that are kept outside of the pool, by their hashes."""

    def contains(self, name: bytes) -> bool: ...

    def load(self, names: Tokens[bytes]) -> list[bytes]:
        """The contents of the longest prefix of these blocks that is there."""
        ...

    def store(self, name: bytes, block: int) -> None:
        """What this block of the pool holds after the step may be kept."""
        ...

    def clear(self) -> None: ...


class Load(Struct, frozen=True):
    """What a block of the pool has to hold before the step."""

    block: int
    contents: bytes


class _Budget:
    """What is left of a step."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._tokens = config.max_num_batched_tokens
        self._pairs = config.max_step_pairs

    def share(self, sequence: Sequence, computed: int) -> int:
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

    def __init__(self, config: SchedulerConfig, pool: BlockPool, offload: Offload | None = None) -> None:
        self._config = config
        self._pool = pool
        self._offload = offload
        self._loads: list[Load] = []
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

    def forget(self) -> None:
        """Find nothing any more of what was computed so far."""
        self._pool.forget()
        if self._offload:
            self._offload.clear()

    def restart(self) -> None:
        """All that runs is to be computed again from its beginning, and nothing that was computed so far is found."""
        for sequence in list(self._running):
            self._put_back(sequence)
            sequence.forget_scores()
        self._pool.clear()

    def disuse_offload(self) -> None:
        """From now on nothing is kept outside of the pool, nor found there."""
        self._offload = None

    def cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """How many tokens of a prompt would be found now. May be asked on any thread: it reads, and no more."""
        if not self._config.enable_prefix_caching:
            return 0
        names = list(prefix_hashes(prompt, cache_salt))
        found = len(self._pool.find(names))
        if self._offload:
            found += sum(1 for _ in takewhile(self._offload.contains, names[found:]))
        return found * BLOCK_SIZE

    def reset(self) -> list[Sequence]:
        """After a step that failed: everything that ran is out, and nothing about the pool is trusted."""
        failed, self._running = self._running, []
        self._loads = []
        self._pool.clear()
        return failed

    def schedule(self) -> list[Chunk]:
        """The next step. Whoever computes its last token in it samples the next one."""
        budget = _Budget(self._config)
        preempted = self.num_preemptions
        chunks = self._schedule_running(budget)
        for chunk in chunks:
            self._cache(chunk)
        if preempted == self.num_preemptions:
            chunks += self._admit(budget)
        return chunks

    def taken_loads(self) -> list[Load]:
        """Those of the step that was scheduled last."""
        loads, self._loads = self._loads, []
        return loads

    def commit(self, chunks: list[Chunk]) -> None:
        """The step was computed."""
        for chunk in chunks:
            chunk.sequence.num_computed_tokens = chunk.end

    def _schedule_running(self, budget: _Budget) -> list[Chunk]:
        chunks: dict[int, Chunk] = {}
        out: set[int] = set()
        # Those that decode before those with a piece of their prompt to compute: they must not have to wait.
        for sequence in sorted(self._running, key=_has_more_than_one):
            if sequence.key in out:
                continue
            count = budget.share(sequence, sequence.num_computed_tokens)
            while count and not self._grow(sequence, count):
                victim = self._preempt()
                out.add(victim.key)
                if victim is sequence:
                    count = 0
                elif victim.key in chunks:
                    budget.spend(chunks.pop(victim.key), sign=-1)
            if count:
                chunks[sequence.key] = chunk = _next(sequence, count)
                budget.spend(chunk)
        return list(chunks.values())

    def _admit(self, budget: _Budget) -> list[Chunk]:
        """Take from the queue while there is room; its head is never skipped."""
        chunks: list[Chunk] = []
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            sequence = self._waiting[0]
            hits = self._find(sequence)
            count = budget.share(sequence, len(hits) * BLOCK_SIZE)
            missing = -(-sequence.num_tokens // BLOCK_SIZE) - len(hits)
            if not count or missing + self._pool.idle(hits) > self._pool.free:
                break
            self._running.append(self._waiting.pop(0))
            self._start(sequence, hits)
            count = budget.share(sequence, sequence.num_computed_tokens)
            self._grow(sequence, count)
            chunks.append(_next(sequence, count))
            budget.spend(chunks[-1])
            # Already now, as vLLM does: all keys of a step are written before any is read, so that choices
            # of one request that start together share their prompt.
            self._cache(chunks[-1])
        return chunks

    def _start(self, sequence: Sequence, hits: list[int]) -> None:
        self._pool.hold(hits)
        sequence.blocks = hits + self._load(sequence, len(hits))
        sequence.num_computed_tokens = len(sequence.blocks) * BLOCK_SIZE
        if not sequence.admitted:
            sequence.admitted, sequence.cached_tokens = True, sequence.num_computed_tokens

    def _load(self, sequence: Sequence, found: int) -> list[int]:
        """Blocks for what is kept outside of the pool of its beginning, after those that were found in it."""
        if not (self._offload and sequence.offloads and self._config.enable_prefix_caching and sequence.reads_cache):
            return []
        names = sequence.block_hashes((sequence.num_tokens - 1) // BLOCK_SIZE)[found:]
        contents = self._offload.load(names)
        blocks = self._pool.allocate(len(contents))
        for name, block, held in zip(names, blocks, contents, strict=False):
            self._pool.cache(block, name)
            self._loads.append(Load(block, held))
        return blocks

    def _find(self, sequence: Sequence) -> list[int]:
        """Cached blocks of its beginning; at least the last token is left to compute."""
        if not (self._config.enable_prefix_caching and sequence.reads_cache):
            return []
        return self._pool.find(sequence.block_hashes((sequence.num_tokens - 1) // BLOCK_SIZE))

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Blocks for so many more tokens; False if there are not enough."""
        missing = -(-(sequence.num_computed_tokens + count) // BLOCK_SIZE) - len(sequence.blocks)
        if missing > self._pool.free:
            return False
        sequence.blocks += self._pool.allocate(missing)
        return True

    def _cache(self, chunk: Chunk) -> None:
        if not self._config.enable_prefix_caching:
            return
        before, after = chunk.begin // BLOCK_SIZE, chunk.end // BLOCK_SIZE
        if before == after:
            return
        hashes = chunk.sequence.block_hashes(after)
        for index in range(before, after):
            self._pool.cache(chunk.sequence.blocks[index], hashes[index])
            if self._offload and chunk.sequence.offloads:
                self._offload.store(hashes[index], chunk.sequence.blocks[index])

    def _preempt(self) -> Sequence:
        """Put the least urgent sequence back into the queue."""
        victim = max(self._running, key=lambda running: running.rank)
        self.num_preemptions += 1
        self._put_back(victim)
        return victim

    def _put_back(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        self.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed_tokens = 0


def _next(sequence: Sequence, count: int) -> Chunk:
    return Chunk(sequence, sequence.num_computed_tokens, sequence.num_computed_tokens + count)


def _has_more_than_one(sequence: Sequence) -> bool:
    return sequence.num_tokens - sequence.num_computed_tokens > 1
