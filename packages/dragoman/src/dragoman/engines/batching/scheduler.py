"""The scheduler: chooses the tokens that the next step computes, by the rules of vLLM's
V1 scheduler.

Running sequences come first; the rest of the token budget goes to waiting ones. Prompts
are computed in chunks alongside decoding (chunked prefill). When the pool is exhausted,
the sequence of lowest priority loses its blocks and is computed again later (preemption
by recompute). `engines/simulator/scheduler.py` explains why the simulator has another
scheduler.
"""

from __future__ import annotations

from bisect import insort
from collections import abc
from itertools import takewhile
from typing import Protocol

from msgspec import Struct

from .block_hashes import hash_prefix
from .block_pool import BLOCK_SIZE, BlockPool
from .sequence import Sequence
from .state_slots import StateSlots


class SchedulerConfig(Struct, frozen=True):
    """Limits of a step.

    max_num_seqs: maximum running sequences.
    max_num_batched_tokens: maximum tokens; at least max_num_seqs, so that every step
        includes all decoding sequences.
    max_step_pairs: maximum query-key pairs of prompt chunks, so that a chunk late in a
        long prompt takes no longer than an early one and does not delay the decoding of
        other sequences.
    enable_prefix_caching: has no effect on a model with state besides keys and values.
    num_state_slots: maximum running sequences of such a model; None means max_num_seqs.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_step_pairs: int = 1 << 20
    enable_prefix_caching: bool = True
    num_state_slots: int | None = None


class Chunk(Struct, frozen=True):
    """Tokens begin to end of a sequence, to be computed in this step."""

    sequence: Sequence
    begin: int
    end: int

    @property
    def num_tokens(self) -> int:
        return self.end - self.begin


class BlockStore(Protocol):
    """Blocks stored outside the pool, by hash."""

    def contains(self, block_hash: bytes) -> bool: ...

    def load(self, hashes: abc.Sequence[bytes]) -> list[bytes]:
        """Load the contents of the longest stored prefix of these blocks."""
        ...

    def enqueue(self, block_hash: bytes, block: int) -> None:
        """Enqueue a block of the pool for storage after the step."""
        ...

    def forget(self, hashes: abc.Iterable[bytes]) -> None:
        """Delete these blocks, whose contents are invalid."""
        ...

    def clear(self) -> None: ...


class BlockLoad(Struct, frozen=True):
    """Contents to write into a block of the pool before the step."""

    block: int
    contents: bytes


class _Budget:
    """The remaining budget of a step."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._tokens = config.max_num_batched_tokens
        self._pairs = config.max_step_pairs

    def grant(self, sequence: Sequence, computed: int) -> int:
        """Return the number of tokens that the sequence may compute: all that it needs,
        if the budget allows.
        """
        count = min(sequence.num_tokens - computed, self._tokens)
        # A decoding sequence always gets its token: the limit of pairs applies to
        # chunks of prompts only.
        if count <= 1:
            return count
        if self._pairs <= 0:
            return 0
        # At least one block, so that the last chunks of a very long prompt make
        # progress too.
        return min(count, max(self._pairs // (computed + count), BLOCK_SIZE))

    def spend(self, chunk: Chunk, sign: int = 1) -> None:
        self._tokens -= sign * chunk.num_tokens
        if chunk.num_tokens > 1:
            self._pairs -= sign * chunk.num_tokens * chunk.end


class Scheduler:
    """The waiting queue and the running set, over a pool that fits at least one
    sequence of maximum length.

    rope_window: see `Model.rope_window`.
    slots: slots for the state that each running sequence has besides its blocks; None
        if the model has no such state. With slots the prefix cache is not used, because
        blocks alone do not hold the state of a prefix.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        pool: BlockPool,
        store: BlockStore | None = None,
        rope_window: int | None = None,
        slots: StateSlots | None = None,
    ) -> None:
        self._config = config
        self._slots = slots
        self._caches_prefixes = config.enable_prefix_caching and slots is None
        self._rope_window = rope_window
        self._pool = pool
        self._store = store
        self._loads: list[BlockLoad] = []
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._suspects: list[dict[int, Chunk]] = []
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
        if self._outgrows_window(sequence):
            sequence.use_long_factors()
        insort(self._waiting, sequence, key=lambda waiting: waiting.rank)

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished or aborted sequence and free its blocks at once."""
        if sequence in self._running:
            self._running.remove(sequence)
            self._free(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        for group in self._suspects:
            group.pop(sequence.key, None)

    def discard(self, sequence: Sequence) -> None:
        """Remove a running sequence whose keys and values are invalid: no other one may
        find them in the prefix cache.
        """
        self._pool.forget(sequence.blocks)
        if self._store:
            self._store.forget(sequence.compute_block_hashes(sequence.num_tokens // BLOCK_SIZE))
        self.remove(sequence)

    def isolate(self, chunks: abc.Sequence[Chunk]) -> None:
        """Compute these chunks, of a step that raised, in two steps, one half after the
        other and apart from all other sequences. All of them have to wait, see
        `restart_all`.
        """
        keys = {chunk.sequence.key for chunk in chunks}
        half = -(-len(chunks) // 2)
        parts = [chunks[:half], chunks[half:]]
        self._suspects = [
            *({chunk.sequence.key: chunk for chunk in part} for part in parts),
            *(
                {key: chunk for key, chunk in group.items() if key not in keys}
                for group in self._suspects
            ),
        ]

    def clear_cache(self) -> None:
        """Empty the prefix cache."""
        self._pool.clear_cache()
        if self._store:
            self._store.clear()

    def restart_all(self) -> None:
        """Recompute all running sequences from their beginning and empty the prefix
        cache.
        """
        for sequence in list(self._running):
            self._requeue(sequence)
            sequence.reset_prompt_logprobs()
        self._loads = []
        self._pool.reset()

    def disable_offload(self) -> None:
        """Stop reading and writing the block store."""
        self._store = None

    def count_cached_tokens(self, prompt: abc.Sequence[int], cache_salt: str) -> int:
        """Count the prompt tokens that are in the cache now. May be called on any
        thread: it only reads.
        """
        if not self._caches_prefixes:
            return 0
        is_long = self._rope_window is not None and len(prompt) > self._rope_window
        hashes = list(hash_prefix(prompt, cache_salt, is_long=is_long))
        num_cached = len(self._pool.find(hashes))
        if self._store:
            num_cached += sum(1 for _ in takewhile(self._store.contains, hashes[num_cached:]))
        return num_cached * BLOCK_SIZE

    def reset(self) -> list[Sequence]:
        """Reset after a failed step: remove and return all running sequences and clear
        the pool.
        """
        failed = self._running
        self._running = []
        self._loads = []
        self._suspects = []
        self._pool.reset()
        if self._slots:
            self._slots.reset()
        return failed

    def schedule(self) -> list[Chunk]:
        """Schedule the next step. A sequence whose last token is computed in it samples
        the next one.
        """
        # A list, since `_requeue` changes the running set.
        for sequence in [running for running in self._running if self._outgrows_window(running)]:
            self._requeue(sequence)
        while self._suspects and all(map(_has_computed, self._suspects[0].values())):
            del self._suspects[0]
        chunks = self._schedule_chunks()
        if self._suspects and not chunks:
            # Sequences that are held back have the blocks that the suspects need.
            for sequence in list(self._running):
                self._requeue(sequence)
            chunks = self._schedule_chunks()
        return chunks

    def _schedule_chunks(self) -> list[Chunk]:
        budget = _Budget(self._config)
        preempted = self.num_preemptions
        chunks = self._schedule_running(budget)
        for chunk in chunks:
            self._cache_full_blocks(chunk)
        # After a preemption in this step, admitting a new sequence would soon cause
        # another one.
        if preempted == self.num_preemptions:
            chunks += self._admit(budget)
        return chunks

    def take_loads(self) -> list[BlockLoad]:
        """Return the loads of the last scheduled step, and forget them."""
        loads = self._loads
        self._loads = []
        return loads

    def commit(self, chunks: list[Chunk]) -> None:
        """Advance the sequences after the step was computed."""
        for chunk in chunks:
            chunk.sequence.num_computed_tokens = chunk.end

    def _schedule_running(self, budget: _Budget) -> list[Chunk]:
        chunks: dict[int, Chunk] = {}
        preempted: set[int] = set()
        # Decoding sequences go before prefilling ones, so that prompts do not increase
        # inter-token latency.
        for sequence in sorted(self._running, key=_is_prefilling):
            if sequence.key in preempted or self._is_held(sequence):
                continue
            count = budget.grant(sequence, sequence.num_computed_tokens)
            while count and not self._allocate(sequence, count):
                # The running sequence of lowest priority goes back into the queue.
                victim = max(self._running, key=lambda running: running.rank)
                self.num_preemptions += 1
                self._requeue(victim)
                preempted.add(victim.key)
                if victim is sequence:
                    count = 0
                # The victim was already scheduled in this step.
                elif victim.key in chunks:
                    budget.spend(chunks.pop(victim.key), sign=-1)
            if count:
                chunks[sequence.key] = chunk = _build_chunk(sequence, count)
                budget.spend(chunk)
        return list(chunks.values())

    def _admit(self, budget: _Budget) -> list[Chunk]:
        """Admit sequences from the queue while there is room; the head is never
        skipped.
        """
        chunks: list[Chunk] = []
        while len(self._running) < self._config.max_num_seqs:
            sequence = next(
                (waiting for waiting in self._waiting if not self._is_held(waiting)), None
            )
            if sequence is None:
                break
            hits: list[int] = []
            if self._caches_prefixes and sequence.can_read_cache:
                # At least the last token is left to compute.
                hits = self._pool.find(
                    sequence.compute_block_hashes((sequence.num_tokens - 1) // BLOCK_SIZE)
                )
            count = budget.grant(sequence, len(hits) * BLOCK_SIZE)
            missing = -(-sequence.num_tokens // BLOCK_SIZE) - len(hits)
            # For all of the prompt, not only this chunk: a half-admitted sequence would
            # be preempted again. Free blocks among the hits are taken as well.
            if not count or missing + self._pool.count_free(hits) > self._pool.num_free:
                break
            if self._slots and not self._slots.num_free:
                break
            self._waiting.remove(sequence)
            self._running.append(sequence)
            self._start(sequence, hits)
            # Granted again: blocks loaded from the store may have reduced the tokens to
            # compute.
            count = budget.grant(sequence, sequence.num_computed_tokens)
            self._allocate(sequence, count)
            chunks.append(_build_chunk(sequence, count))
            budget.spend(chunks[-1])
            # Cached before the step runs, as in vLLM: a step writes all keys before it
            # reads any, so the choices of one request that start together share their
            # prompt.
            self._cache_full_blocks(chunks[-1])
        return chunks

    def _is_held(self, sequence: Sequence) -> bool:
        """Whether the sequence has to wait until others were computed apart from it."""
        return bool(self._suspects) and sequence.key not in self._suspects[0]

    def _start(self, sequence: Sequence, hits: list[int]) -> None:
        if self._slots:
            sequence.state_slot = self._slots.allocate()
        self._pool.acquire(hits)
        sequence.blocks = list(hits)
        if (
            self._store
            and sequence.can_offload
            and self._caches_prefixes
            and sequence.can_read_cache
        ):
            # The store may have the blocks that follow the cached ones; the step loads
            # them.
            hashes = sequence.compute_block_hashes((sequence.num_tokens - 1) // BLOCK_SIZE)[
                len(hits) :
            ]
            contents = self._store.load(hashes)
            blocks = self._pool.allocate(len(contents))
            for block_hash, block, data in zip(hashes, blocks, contents, strict=False):
                self._pool.cache(block, block_hash)
                self._loads.append(BlockLoad(block, data))
            sequence.blocks += blocks
        sequence.num_computed_tokens = len(sequence.blocks) * BLOCK_SIZE
        # Only the first time: after a preemption the hits are mostly its own blocks,
        # which are no savings to report.
        if not sequence.was_admitted:
            sequence.was_admitted = True
            sequence.cached_tokens = sequence.num_computed_tokens

    def count_written_tokens(self, sequence: Sequence) -> int:
        """Count the prompt tokens that the prefill of an admitted sequence writes to
        the cache; full blocks only.
        """
        if not self._caches_prefixes:
            return 0
        return max(
            0, len(sequence.request.prompt) // BLOCK_SIZE * BLOCK_SIZE - sequence.cached_tokens
        )

    def _allocate(self, sequence: Sequence, count: int) -> bool:
        """Allocate blocks for `count` more tokens. Returns False if the pool has too
        few.
        """
        missing = -(-(sequence.num_computed_tokens + count) // BLOCK_SIZE) - len(sequence.blocks)
        if missing > self._pool.num_free:
            return False
        sequence.blocks += self._pool.allocate(missing)
        return True

    def _cache_full_blocks(self, chunk: Chunk) -> None:
        if not self._caches_prefixes:
            return
        first = chunk.begin // BLOCK_SIZE
        end = chunk.end // BLOCK_SIZE
        if first == end:
            return
        hashes = chunk.sequence.compute_block_hashes(end)
        for index in range(first, end):
            self._pool.cache(chunk.sequence.blocks[index], hashes[index])
            if self._store and chunk.sequence.can_offload:
                self._store.enqueue(hashes[index], chunk.sequence.blocks[index])

    def _outgrows_window(self, sequence: Sequence) -> bool:
        """Whether the sequence has become too long for the short RoPE factors of its
        keys.
        """
        return (
            self._rope_window is not None
            and not sequence.is_long
            and sequence.num_tokens > self._rope_window
        )

    def _requeue(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        self.add(sequence)

    def _free(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        if self._slots and sequence.state_slot is not None:
            self._slots.release(sequence.state_slot)
            sequence.state_slot = None
        sequence.blocks = []
        sequence.num_computed_tokens = 0


def _build_chunk(sequence: Sequence, count: int) -> Chunk:
    return Chunk(sequence, sequence.num_computed_tokens, sequence.num_computed_tokens + count)


def _is_prefilling(sequence: Sequence) -> bool:
    return sequence.num_tokens - sequence.num_computed_tokens > 1


def _has_computed(chunk: Chunk) -> bool:
    """Whether a later step has computed the chunk."""
    return chunk.sequence.num_computed_tokens >= chunk.end
