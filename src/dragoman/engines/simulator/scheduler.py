"""Which sequence computes how many tokens in the next step: vLLM's V1 scheduler. Pure; it knows no times.

Those that run come first; what is left of the step's token budget goes to those that wait. Prompts are computed
in chunks beside the others' decoding. When the pool runs out the least urgent sequence gives up its blocks and is
computed again later (preemption by recompute).

`schedule` may be called again before `update` has heard of the step's end: tokens that a running step will give
are counted as scheduled, so the next step can be made without knowing them (asynchronous scheduling).
"""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from ...core.errors import ContextTooLong, RequestError
from .blocks import BlockPool
from .config import SchedulerConfig
from .latency import StepLoad
from .sequence import Sequence, Status
from .waiting import WaitingQueue


class Chunk(Struct, frozen=True, gc=False):
    """num_tokens tokens of a prompt (or of one that is computed again), from num_computed_tokens on."""

    sequence: Sequence
    num_computed_tokens: int
    num_tokens: int

    @property
    def pairs(self) -> float:
        """Query-key pairs of its attention."""
        return self.num_tokens * (self.num_computed_tokens + self.num_tokens / 2)


class Fetch(Struct, frozen=True, gc=False):
    """A sequence that waits for num_tokens of its prompt from another instance; 0 if all were found here."""

    sequence: Sequence
    num_tokens: int


class Step:
    """What is computed together.

    decodes: who computes one token and has the next when the step ends. chunks: prompts' pieces.
    filled: whose decoding fills a block. admitted: who left the queue for this step. preempted: who went back.
    fetching: who left the queue to wait for another instance; they take no part in the step.
    """

    __slots__ = ("admitted", "chunks", "completed", "decodes", "fetching", "filled", "num_chunk_tokens", "preempted")

    def __init__(self) -> None:
        self.decodes: list[Sequence] = []
        self.chunks: list[Chunk] = []
        self.num_chunk_tokens = 0
        self.completed: list[Sequence] = []
        self.filled: list[Sequence] = []
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.fetching: list[Fetch] = []

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + self.num_chunk_tokens

    @property
    def load(self) -> StepLoad:
        """As it is right after `schedule`."""
        return StepLoad(
            tokens=self.num_tokens,
            context=sum([sequence.num_computed_tokens for sequence in self.decodes]),
            prefill_pairs=sum([chunk.pairs for chunk in self.chunks]),
            sequences=len(self.decodes) + len(self.chunks),
        )


class SchedulerStats(Struct):
    """Counts since the start. prefix_cache_*: prompt tokens, at a request's first admission."""

    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0


class Scheduler:
    """The waiting queue and the running set over a block pool."""

    def __init__(self, config: SchedulerConfig, pool: BlockPool | None = None) -> None:
        self.config = config
        self.pool = pool or BlockPool(config.num_gpu_blocks)
        self.stats = SchedulerStats()
        self._waiting = WaitingQueue(config.scheduling_policy)
        self._running: list[Sequence] = []
        self._fetching: list[Sequence] = []
        self._fetched: deque[Sequence] = deque()
        self._watermark = int(config.watermark * config.num_gpu_blocks)

    @property
    def num_waiting(self) -> int:
        """Those that fetch included, as in vLLM."""
        return len(self._waiting) + len(self._fetched) + len(self._fetching)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def running(self) -> tuple[Sequence, ...]:
        """In the order in which they are scheduled."""
        return tuple(self._running)

    def waiting(self) -> tuple[Sequence, ...]:
        """In the order in which they would be admitted; at the end those that fetch."""
        return (*self._fetched, *self._waiting, *self._fetching)

    def cached_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks that hold its beginning already; at least the last token is left to compute."""
        if not self.config.enable_prefix_caching:
            return []
        full = (sequence.num_tokens - 1) // self.config.block_size
        return self.pool.find(sequence.contents.block_hash(index) for index in range(full))

    def check(self, sequence: Sequence) -> None:
        """Raise RequestError for what could never run, so that it does not wedge the queue."""
        if sequence.num_prompt_tokens < 1:
            raise RequestError("The prompt is empty.", param="prompt")
        if sequence.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1.", param="max_tokens")
        limit = self.config.context
        if sequence.num_prompt_tokens >= limit:
            raise ContextTooLong(limit=limit, prompt=sequence.num_prompt_tokens)
        if sequence.num_tokens_at_end > limit:
            raise RequestError(
                f"The prompt's {sequence.num_prompt_tokens} tokens and max_tokens={sequence.max_tokens} are more than "
                f"the {limit} tokens of the context.",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises RequestError if it can never run."""
        self.check(sequence)
        self._waiting.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Ended by its content, or aborted: out at once, and its blocks are free. Again does nothing."""
        match sequence.status:
            case Status.RUNNING:
                self._running.remove(sequence)
                self._free(sequence)
            case Status.WAITING | Status.PREEMPTED:
                self._waiting.remove(sequence)
            case Status.FETCHING:
                self._fetching.remove(sequence)
                self._free(sequence)
            case Status.FETCHED:
                self._fetched.remove(sequence)
                self._free(sequence)
            case Status.FINISHED:
                return
        sequence.status = Status.FINISHED

    def release(self, sequence: Sequence) -> None:
        """Free what a finished sequence kept for another instance. Again does nothing."""
        if sequence.status is Status.FINISHED:
            self._free(sequence)

    def fetched(self, sequence: Sequence) -> None:
        """What it waited for has come: it goes on before anyone who is not yet running."""
        self._fetching.remove(sequence)
        here = max(sequence.num_remote_tokens, sequence.num_computed_tokens)
        sequence.num_computed_tokens = min(here, sequence.num_tokens - 1)  # the last one gives the first token
        sequence.num_remote_tokens = 0
        sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.status = Status.FETCHED
        self._publish(sequence)
        self._fetched.append(sequence)

    def fetch_failed(self, sequence: Sequence) -> None:
        """It does not come: the sequence is computed here instead, and is next in the queue."""
        self._fetching.remove(sequence)
        self._free(sequence)
        sequence.num_remote_tokens = 0
        sequence.status = Status.WAITING
        self._waiting.put_back(sequence)

    def schedule(self) -> Step:
        """The next step; one without tokens if there is nothing to compute, or all gave way."""
        step = Step()
        self._schedule_running(step)
        for chunk in step.chunks:
            self._publish(chunk.sequence)
        if not step.preempted:
            self._admit(step)
        return step

    def update(self, step: Step) -> tuple[list[Sequence], list[Sequence]]:
        """The step has ended: who got a token (those that were aborted meanwhile did not), and who is finished."""
        for sequence in step.filled:
            if sequence.status is Status.RUNNING:
                self._publish(sequence)
        sampled: list[Sequence] = []
        finished: list[Sequence] = []
        for sequence in step.decodes + step.completed:
            if sequence.status is Status.FINISHED:
                continue
            sequence.num_output_tokens += 1
            sampled.append(sequence)
            if sequence.num_output_tokens == sequence.max_tokens:
                finished.append(sequence)
        for sequence in finished:
            if sequence.keeps_blocks:
                self._running.remove(sequence)
                sequence.status = Status.FINISHED
            else:
                self.finish(sequence)
        return sampled, finished

    def _schedule_running(self, step: Step) -> None:
        """The hot loop: who decodes costs a few attribute accesses, and a block every block_size steps."""
        block_size, budget, decodes = self.config.block_size, self.config.max_num_batched_tokens, step.decodes
        for sequence in self._running.copy():
            left = budget - step.num_chunk_tokens - len(decodes)
            if not left:
                break
            computed, known = sequence.num_computed_tokens, sequence.num_tokens
            if known == sequence.num_tokens_at_end or sequence.status is not Status.RUNNING:
                continue  # its last token is on its way, or it has just been preempted
            if known - computed != 1:
                if not self._extend(sequence, min(left, known - computed), step):
                    break
                continue
            if computed % block_size == 0 and not self._grow(sequence, known, step):
                break
            sequence.num_computed_tokens = known
            sequence.num_tokens = known + 1
            decodes.append(sequence)
            if known % block_size == 0:
                step.filled.append(sequence)

    def _extend(self, sequence: Sequence, count: int, step: Step) -> bool:
        """Compute so many more tokens of its prompt. False if it had to give way."""
        count = self._cut(count)
        if not self._grow(sequence, sequence.num_computed_tokens + count, step):
            return False
        self._compute(sequence, count, step)
        return True

    def _compute(self, sequence: Sequence, count: int, step: Step) -> None:
        step.chunks.append(Chunk(sequence, sequence.num_computed_tokens, count))
        step.num_chunk_tokens += count
        sequence.num_computed_tokens += count
        if sequence.num_computed_tokens == sequence.num_tokens:
            sequence.num_tokens += 1
            step.completed.append(sequence)

    def _grow(self, sequence: Sequence, num_tokens: int, step: Step) -> bool:
        """Hold blocks for so many tokens, preempting while there are too few. False if it had to give way itself."""
        missing = -(-num_tokens // self.config.block_size) - len(sequence.blocks)
        while missing > self.pool.free:
            victim = self._victim()
            self._preempt(victim, step)
            if victim is sequence:
                return False
        sequence.blocks += self.pool.allocate(missing)
        return True

    def _victim(self) -> Sequence:
        if self.config.scheduling_policy == "priority":
            return max(self._running, key=lambda sequence: sequence.rank)
        return self._running[-1]

    def _preempt(self, victim: Sequence, step: Step) -> None:
        self._withdraw(victim, step)
        self._running.remove(victim)
        self._free(victim)
        victim.status = Status.PREEMPTED
        victim.num_preemptions += 1
        self.stats.num_preemptions += 1
        step.preempted.append(victim)
        self._waiting.put_back(victim)

    def _withdraw(self, victim: Sequence, step: Step) -> None:
        """A victim by priority may already be part of this step."""
        if victim in step.decodes:
            step.decodes.remove(victim)
            victim.num_tokens -= 1
        elif victim in step.completed:
            step.completed.remove(victim)
            victim.num_tokens -= 1
        if victim in step.filled:
            step.filled.remove(victim)
        step.chunks = [chunk for chunk in step.chunks if chunk.sequence is not victim]
        step.num_chunk_tokens = sum(chunk.num_tokens for chunk in step.chunks)

    def _admit(self, step: Step) -> None:
        """Take from the queue while there is room. Its head is never skipped."""
        config = self.config
        self._resume(step)
        while self._waiting and not self._fetched and len(self._running) < config.max_num_seqs:
            left = config.max_num_batched_tokens - step.num_tokens
            sequence = self._waiting.head
            hits = self.cached_prefix(sequence)
            if left and sequence.num_remote_tokens:
                if not self._fetch(sequence, hits, step):
                    break
                continue
            cached = len(hits) * config.block_size
            count = self._cut(sequence.num_tokens - cached)
            if not left or (count > left and not config.enable_chunked_prefill):
                break
            count = min(count, left)
            if not self._can_admit(sequence, hits, cached + count):
                break
            self._waiting.pop()
            self._start(sequence, hits, step)
            self._grow(sequence, cached + count, step)
            self._compute(sequence, count, step)
            # Already now, as vLLM does: all keys of a step are written before any is read, so requests that
            # start together share their prompt.
            self._publish(sequence)

    def _resume(self, step: Step) -> None:
        """Those whose prompt has been fetched. They hold their blocks, so nobody may stand in their way: whoever waits
        for these blocks would wait for ever."""
        while self._fetched and len(self._running) < self.config.max_num_seqs:
            left = self.config.max_num_batched_tokens - step.num_tokens
            sequence = self._fetched[0]
            count = self._cut(sequence.num_tokens - sequence.num_computed_tokens)
            if not left or (count > left and not self.config.enable_chunked_prefill):
                break
            self._fetched.popleft()
            sequence.status = Status.RUNNING
            self._running.append(sequence)
            step.admitted.append(sequence)
            self._compute(sequence, min(count, left), step)
            self._publish(sequence)

    def _fetch(self, sequence: Sequence, hits: list[int], step: Step) -> bool:
        """Blocks for the whole prompt, to be filled by another instance. False if they are not to be had.

        What is in the cache is not fetched; if that is all, the sequence stays where it is, as any other.
        """
        missing = min(sequence.num_remote_tokens, sequence.num_prompt_tokens) - len(hits) * self.config.block_size
        if missing <= 0:
            sequence.num_remote_tokens = 0
            step.fetching.append(Fetch(sequence, 0))
            return True
        if not self._can_admit(sequence, hits, sequence.num_tokens):
            return False
        self._waiting.pop()
        self._take(sequence, hits)
        self._grow(sequence, sequence.num_tokens, step)
        sequence.status = Status.FETCHING
        self._fetching.append(sequence)
        step.fetching.append(Fetch(sequence, missing))
        return True

    def _cut(self, count: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        return min(count, threshold) if threshold else count

    def _can_admit(self, sequence: Sequence, hits: list[int], end: int) -> bool:
        reserved = sequence.num_tokens if self.config.scheduler_reserve_full_isl else end
        missing = -(-reserved // self.config.block_size) - len(hits) + self.pool.idle(hits)
        return missing + (self._watermark if self._running else 0) <= self.pool.free

    def _start(self, sequence: Sequence, hits: list[int], step: Step) -> None:
        self._take(sequence, hits)
        sequence.status = Status.RUNNING
        self._running.append(sequence)
        step.admitted.append(sequence)

    def _take(self, sequence: Sequence, hits: list[int]) -> None:
        """What the cache has of its beginning."""
        self.pool.hold(hits)
        sequence.blocks = hits
        sequence.num_hashed_blocks = len(hits)
        sequence.num_computed_tokens = len(hits) * self.config.block_size
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.stats.prefix_cache_queries += sequence.num_prompt_tokens
            self.stats.prefix_cache_hits += sequence.num_computed_tokens

    def _publish(self, sequence: Sequence) -> None:
        """Let its full blocks be found, as far as their tokens are known."""
        if not self.config.enable_prefix_caching:
            return
        known = sequence.num_prompt_tokens + sequence.num_output_tokens
        full = min(sequence.num_computed_tokens, known) // self.config.block_size
        for index in range(sequence.num_hashed_blocks, full):
            self.pool.cache(sequence.blocks[index], sequence.contents.block_hash(index))
        sequence.num_hashed_blocks = max(sequence.num_hashed_blocks, full)

    def _free(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed_tokens = 0
