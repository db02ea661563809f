"""A simulation of vLLM's V1 scheduler, which decides how many tokens of which sequences
the next step computes.

Running sequences come first; the rest of the step's token budget goes to waiting ones.
Prompts are computed in chunks alongside decoding (chunked prefill). When the pool is
exhausted, the sequence of lowest priority loses its blocks and is recomputed later
(preemption by recomputation).

`schedule` may be called again before `update` reports the step's end: tokens that a
running step will sample count as scheduled, so the next step is scheduled without
knowing them (asynchronous scheduling).

`engines/batching/scheduler.py` is a separate scheduler on purpose. It runs real models,
whose steps take milliseconds: a sequence is one object with its tokens, blocks, matcher
and sampling state, and each of its chunks is another. This one reproduces every step of
vLLM's V1 scheduler, which `tests/engines/vllm/lockstep.py` checks. It is also the hot
loop of offline replays and of servers with tens of thousands of streams, so a sequence
is a few counters, and a decoding one is an entry of a list. With 512 decoding streams a
whole replay takes 1.4 us of CPU per sequence and step, but the scheduler of
`engines/batching` alone takes 3.6 us. `benchmarks/simulator.py` measures the replay.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from dragoman.core.errors import ContextTooLong, RequestError

from .block_pool import SimulatedBlockPool
from .kv_cache import CachedPrefix, build_kv_cache
from .kv_offloading import KvOffloading, OffloadingConfig
from .scheduler_config import SimulatedSchedulerConfig
from .scheduler_output import PrefillChunk, RemoteFetch, SchedulerOutput
from .sequence import PriorityQueue, SequenceStatus, SimulatedSequence, WaitingQueue


class SchedulerStats(Struct):
    """Counts since the start.

    prefix_cache_*: prompt tokens, counted at a request's first admission. num_drafts:
    number of drafts, one per sequence and step with speculative tokens.
    num_accepted_by_position: number of drafts whose first, second, ... token was
    accepted.
    """

    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_by_position: list[int] = []

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.num_accepted_by_position)


CountSampled = Callable[[SimulatedSequence, int], int]
"""Counts the tokens that a sequence got in a step that verified this many draft tokens:
1, plus the accepted ones.
"""


class SimulatedScheduler:
    """The waiting queue and the running set over a block pool.

    offloading: a second tier of the KV cache, in host memory.
    """

    def __init__(
        self,
        config: SimulatedSchedulerConfig,
        pool: SimulatedBlockPool | None = None,
        offloading: OffloadingConfig | None = None,
    ) -> None:
        if offloading is not None and (
            config.num_speculative_tokens or not config.enable_prefix_caching
        ):
            raise ValueError(
                "KV offloading is simulated with prefix caching and without speculative decoding "
                "only"
            )
        if offloading is not None and config.kv_cache_groups:
            raise ValueError("KV offloading is simulated without kv_cache_groups only")
        self.config = config
        self.pool = pool or SimulatedBlockPool(config.num_gpu_blocks)
        self._kv = build_kv_cache(config, self.pool)
        self._has_groups = bool(config.kv_cache_groups)
        self.stats = SchedulerStats()
        self._waiting = (
            PriorityQueue() if config.scheduling_policy == "priority" else WaitingQueue()
        )
        self._running: list[SimulatedSequence] = []
        self._fetching: list[SimulatedSequence] = []
        self._ready_to_resume: deque[SimulatedSequence] = deque()
        # vLLM keeps this many blocks free on admission, so that a new request does not
        # cause preemption at once.
        self._watermark = int(config.watermark * config.num_gpu_blocks)
        self._max_running = config.max_num_active_seqs or config.max_num_seqs
        self._max_chunk = config.max_num_batched_tokens
        """Most prompt tokens of one sequence in this step."""
        self._has_loras = False
        self._resident_loras: OrderedDict[str, None] = OrderedDict()
        """Adapters on the device, the most recently used last."""
        self._max_length = config.max_model_len or config.kv_tokens
        self._max_context = config.max_context
        self.stats.num_accepted_by_position = [0] * config.num_speculative_tokens
        self._unconfirmed: list[SimulatedSequence] = []
        """Sequences whose accepted drafts may have filled blocks, in the order of their
        step.
        """
        self._skipped: set[SimulatedSequence] = set()
        """Waiting sequences that were skipped for their adapter, or until they can be
        loaded from the host.
        """
        self.offloading = None
        if offloading is not None:
            self.offloading = KvOffloading(offloading, config.block_size)
        self._loading: list[SimulatedSequence] = []
        """Sequences that are being loaded from the host, or were loaded but do not run
        yet.
        """
        self._loaded: set[SimulatedSequence] = set()
        self._prefilling: dict[SimulatedSequence, None] = {}
        """Running sequences whose prompt is not fully computed; with offloading only.
        """
        self._num_scheduled_steps = self._num_ended_steps = 0
        """Steps with tokens; counted with offloading only."""
        self._deferred_frees: deque[tuple[int, list[int]]] = deque()
        """Blocks that a running step may still write, each with that step's number."""

    @property
    def num_waiting(self) -> int:
        """Number of waiting sequences, including fetching ones, as in vLLM."""
        return (
            len(self._waiting)
            + len(self._ready_to_resume)
            + len(self._fetching)
            + len(self._loading)
        )

    @property
    def num_deferred(self) -> int:
        """Number of waiting sequences that wait for a transfer or for their adapter,
        not for capacity.
        """
        return (
            len(self._skipped)
            + len(self._ready_to_resume)
            + len(self._fetching)
            + len(self._loading)
        )

    @property
    def has_work(self) -> bool:
        """Whether `schedule` may have something to do, as vLLM asks before each step."""
        return bool(self._running or self._waiting or self._ready_to_resume or self._loading) or (
            # Transfers of ended sequences may be due.
            self.offloading is not None
        )

    @property
    def num_fetched_waiting(self) -> int:
        """Number of sequences whose prompt has been fetched, and that do not run yet."""
        return len(self._ready_to_resume)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def list_running(self) -> tuple[SimulatedSequence, ...]:
        """List running sequences in scheduling order."""
        return tuple(self._running)

    def list_waiting(self) -> tuple[SimulatedSequence, ...]:
        """List waiting sequences in admission order; fetching ones last."""
        return (*self._ready_to_resume, *self._loading, *self._waiting, *self._fetching)

    def count_cached_tokens(self, sequence: SimulatedSequence) -> int:
        """Count the tokens of a sequence's cached prefix, which never includes its last
        token.
        """
        return self._kv.find(sequence).num_tokens

    def count_written_tokens(self, sequence: SimulatedSequence) -> int:
        """Count the prompt tokens that a sequence's prefill writes to the cache; full
        blocks only.

        As `PrefillStats.finalize` of vLLM 0.33.
        """
        block_size = self.config.block_size
        end = (
            sequence.num_prompt_tokens // block_size * block_size
            if self.config.enable_prefix_caching
            else 0
        )
        return max(0, end - (sequence.num_cached_tokens or 0))

    def check(self, sequence: SimulatedSequence) -> None:
        """Raise RequestError for a sequence that can never run, so that it does not
        block the queue.
        """
        if sequence.num_prompt_tokens < 1:
            raise RequestError("The prompt is empty.", param="prompt")
        if sequence.max_tokens < 1:
            raise RequestError("max_tokens must be at least 1.", param="max_tokens")
        limit = self._max_context
        if sequence.num_prompt_tokens >= limit:
            raise ContextTooLong(limit=limit, prompt=sequence.num_prompt_tokens)
        # Otherwise a single sequence could outgrow the cache, and preempt itself again
        # and again.
        if sequence.num_tokens_at_end > limit:
            raise RequestError(
                f"The prompt's {sequence.num_prompt_tokens} tokens and "
                f"max_tokens={sequence.max_tokens} are more than "
                f"the {limit} tokens of the context.",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def add(self, sequence: SimulatedSequence) -> None:
        """Queue a sequence. Raises RequestError if it can never run."""
        self.check(sequence)
        self.enqueue(sequence)

    def enqueue(self, sequence: SimulatedSequence) -> None:
        """Queue a sequence that `check` has accepted."""
        self._has_loras = self._has_loras or bool(sequence.lora)
        self._waiting.add(sequence)
        if self.offloading is not None:
            self.offloading.add(sequence)

    def finish(self, sequence: SimulatedSequence, *, aborted: bool = False) -> None:
        """Finish or abort a sequence: remove it at once and free its blocks.
        Idempotent.

        Blocks that a transfer or, with offloading, a running step writes are freed once
        it has ended.

        A sequence that keeps its blocks for another instance does so only after its
        last token: vLLM's connector (request_finished of nixl_connector.py) frees those
        of requests that stopped or were aborted before.
        """
        # Before its blocks are freed: a block can be cached only while a sequence holds
        # it.
        if self._unconfirmed:
            self.cache_accepted(sequence)
        if self.offloading is not None and sequence.status is not SequenceStatus.FINISHED:
            self.offloading.finish(sequence, sequence.num_computed_tokens, aborted=aborted)
        match sequence.status:
            case SequenceStatus.RUNNING:
                self._running.remove(sequence)
                # Blocks stay held until the decode instance has fetched them, unless
                # the prefill ended prematurely.
                if not sequence.keeps_blocks or sequence.num_output_tokens < sequence.max_tokens:
                    self._free(sequence)
            case SequenceStatus.WAITING | SequenceStatus.PREEMPTED:
                self._waiting.remove(sequence)
            case SequenceStatus.FETCHING:
                self._fetching.remove(sequence)
                self._free(sequence)
            case SequenceStatus.FETCHED:
                self._ready_to_resume.remove(sequence)
                self._free(sequence)
            case SequenceStatus.LOADING:
                self._loading.remove(sequence)
                # While the load writes the blocks, they are held; `complete_transfers`
                # frees them.
                if sequence in self._loaded or sequence.is_loaded:
                    self._loaded.discard(sequence)
                    self._free(sequence)
            case SequenceStatus.FINISHED:
                return
        self._skipped.discard(sequence)
        sequence.status = SequenceStatus.FINISHED

    def release(self, sequence: SimulatedSequence) -> None:
        """Free the blocks that a finished sequence holds for another instance.
        Idempotent.
        """
        if sequence.status is SequenceStatus.FINISHED:
            self._free(sequence)

    def complete_fetch(self, sequence: SimulatedSequence) -> None:
        """Complete a fetch: the sequence is scheduled before all other waiting ones."""
        self._fetching.remove(sequence)
        available = max(sequence.num_remote_tokens, sequence.num_computed_tokens)
        num_cached = sequence.num_computed_tokens
        sequence.num_computed_tokens = min(
            available, sequence.num_tokens - 1
        )  # the last one gives the first token
        sequence.num_remote_tokens = 0
        sequence.num_cached_tokens = sequence.num_computed_tokens
        sequence.num_fetched_tokens = sequence.num_computed_tokens - num_cached
        sequence.status = SequenceStatus.FETCHED
        self._cache_full_blocks(sequence)
        self._ready_to_resume.append(sequence)

    def fail_fetch(self, sequence: SimulatedSequence) -> None:
        """Fail a fetch: the sequence is computed here instead, and is next in the
        queue.
        """
        self._fetching.remove(sequence)
        self._free(sequence)
        sequence.num_remote_tokens = 0
        sequence.status = SequenceStatus.WAITING
        self._waiting.prepend(sequence)

    def complete_transfers(self, ids: Sequence[int]) -> None:
        """Complete transfers between device and host, in this order. Call it after
        `finish` for a step's sequences.
        """
        assert self.offloading is not None
        for sequence in self.offloading.complete(ids):
            if sequence.status is SequenceStatus.FINISHED:
                self._free(sequence)
            else:
                self._loaded.add(sequence)

    def schedule(self) -> SchedulerOutput:
        """Schedule the next step; it has no tokens if there is nothing to compute, or
        all sequences were preempted.
        """
        step = SchedulerOutput()
        config = self.config
        if self._has_groups:
            self._kv.begin_step()
        if self._unconfirmed:
            self.cache_accepted()
        if config.long_prefill_token_threshold:
            self._max_chunk = self._find_max_chunk()
        is_mixed = True
        if config.num_speculative_tokens:
            self._schedule_with_drafts(step)
        else:
            if self._running:
                self._schedule_running(step)
            is_mixed = bool(step.last_chunks)
            # As in vLLM, a step that preempts admits no sequence: running ones have too
            # few blocks already.
            if (self._waiting or self._ready_to_resume or self._loading) and not step.preempted:
                self._admit(step)
            if self._has_groups:
                self._count_in_flight(step, 1)
        # `update` reports samplers in the order of the running set, where decodes and
        # prompts are mixed in this step.
        if is_mixed:
            samplers = {*step.decodes, *step.last_chunks}
            step.samplers = [sequence for sequence in self._running if sequence in samplers]
        if self._has_loras:
            self._load_loras(step)
        if self.offloading is not None:
            self._schedule_transfers(self.offloading, step)
        return step

    def _load_loras(self, step: SchedulerOutput) -> None:
        """Load the adapters of a step. As in vLLM, they are kept in an LRU cache."""
        step.has_loras = True
        resident = self._resident_loras
        computed = (*step.decodes, *(chunk.sequence for chunk in step.chunks))
        for lora in dict.fromkeys(sequence.lora for sequence in computed if sequence.lora):
            step.loaded_loras += lora not in resident
            resident[lora] = None
            resident.move_to_end(lora)
        # Evict only now that all of the step's adapters are at the end, so that
        # none of them is evicted.
        while len(resident) > self.config.max_loras:
            resident.popitem(last=False)

    def _count_in_flight(self, step: SchedulerOutput, sign: int) -> None:
        for sequence in step.decodes:
            sequence.num_in_flight += sign
        for chunk in step.chunks:
            chunk.sequence.num_in_flight += sign * chunk.num_tokens

    def _schedule_transfers(self, offloading: KvOffloading, step: SchedulerOutput) -> None:
        computed = {*step.decodes, *(chunk.sequence for chunk in step.chunks)}
        # In the order of the step, which determines the recency of the host's chunks.
        scheduled = [sequence for sequence in self._running if sequence in computed]
        step.transfers = offloading.build_transfers(scheduled, step.preempted)
        if self._prefilling:
            for sequence in step.decodes:
                # If only the last prompt token is left, it is computed like a decoding
                # step.
                self._prefilling.pop(sequence, None)
        if computed:
            self._num_scheduled_steps += 1
            for sequence in computed:
                sequence.last_step = self._num_scheduled_steps

    def update(
        self, step: SchedulerOutput, count_sampled: CountSampled | None = None
    ) -> tuple[list[SimulatedSequence], list[SimulatedSequence]]:
        """End a step. Returns the sequences that got a token, except those aborted
        meanwhile; and those of them that got their last token.

        The caller calls `finish` for the latter and for those that a stop token ends,
        in the order of the first list: that of the step, in which vLLM frees their
        blocks. With speculative decoding a sequence got `num_sampled` tokens, which the
        caller appends to its contents before it calls `finish` or `schedule`.

        count_sampled: counts the tokens of a sequence with drafts; None accepts no
            draft.
        """
        if self.config.num_speculative_tokens:
            return self._update_with_drafts(step, count_sampled)
        if self._has_groups:
            self._count_in_flight(step, -1)
        if self.offloading is not None and step.num_tokens:
            self._num_ended_steps += 1
            # Steps end in the order in which they were scheduled, so all steps up to
            # this number have ended.
            while self._deferred_frees and self._deferred_frees[0][0] <= self._num_ended_steps:
                self.pool.release(self._deferred_frees.popleft()[1])
        for sequence in step.block_fillers:
            # A sequence that was preempted or has ended meanwhile no longer holds the
            # block.
            if sequence.status is SequenceStatus.RUNNING:
                self._cache_full_blocks(sequence)
        sampled: list[SimulatedSequence] = []
        finished: list[SimulatedSequence] = []
        # A local name: to find a member of an enum costs twice an attribute.
        is_finished = SequenceStatus.FINISHED
        for sequence in step.samplers or step.decodes + step.last_chunks:
            # A preempted sequence is included: it has lost its blocks, but keeps the
            # sampled token.
            if sequence.status is is_finished:
                continue
            sequence.num_output_tokens = count = sequence.num_output_tokens + 1
            sampled.append(sequence)
            if count == sequence.max_tokens:
                finished.append(sequence)
        return sampled, finished

    def _find_max_chunk(self) -> int:
        """Find the most prompt tokens of one sequence in this step, which depend on the
        number of sequences. A single sequence delays no other and has no limit.
        """
        config = self.config
        num_sequences = len(self._running) + self.num_waiting
        if num_sequences < 2:
            return config.max_num_batched_tokens
        if config.long_prefill_token_threshold_adaptive:
            share = config.max_num_batched_tokens // num_sequences
            return max(config.long_prefill_token_threshold, share)
        return config.long_prefill_token_threshold

    def _schedule_running(self, step: SchedulerOutput) -> None:
        """Schedule running sequences.

        This is the hot loop: a decoding sequence costs a few attribute accesses, and a
        block every block_size steps.
        """
        block_size = self.config.block_size
        has_groups = self._has_groups
        budget = self.config.max_num_batched_tokens
        decode_budget = budget - step.num_chunk_tokens
        decodes = step.decodes
        # Under the priority policy, sequences after one that preempted itself are more
        # urgent, and may fit now.
        ends_at_preempted = self.config.scheduling_policy == "fcfs"
        is_running = SequenceStatus.RUNNING
        # A copy, since preemption removes sequences from the list.
        for sequence in self._running.copy():
            if len(decodes) >= decode_budget:
                break
            computed = sequence.num_computed_tokens
            known = sequence.num_tokens
            if known == sequence.num_tokens_at_end or sequence.status is not is_running:
                continue  # its last token is in flight, or it was just preempted
            if known - computed != 1:
                is_scheduled = self._schedule_chunk(sequence, decode_budget - len(decodes), step)
                decode_budget = budget - step.num_chunk_tokens
                if not is_scheduled and (ends_at_preempted or sequence.status is is_running):
                    break
                continue
            # A decoding sequence needs a new block only when its last one is full. With
            # groups, it may have blocks to free.
            if has_groups or computed % block_size == 0:
                is_allocated = self._allocate(sequence, known, step)
                # Preemption may have taken a chunk out of the step.
                decode_budget = budget - step.num_chunk_tokens
                if not is_allocated:
                    if ends_at_preempted or sequence.status is is_running:
                        break
                    continue
                self._cache_full_blocks(
                    sequence
                )  # with a step in flight, all of the block before is known only now
            sequence.num_computed_tokens = known
            sequence.num_tokens = known + 1
            decodes.append(sequence)
            if known % block_size:
                continue
            # As in vLLM, a block is cached when it is scheduled, unless its last token
            # is yet to be sampled.
            if known == sequence.num_prompt_tokens + sequence.num_output_tokens:
                self._cache_full_blocks(sequence)
            else:
                step.block_fillers.append(sequence)

    def _schedule_chunk(
        self, sequence: SimulatedSequence, remaining: int, step: SchedulerOutput
    ) -> bool:
        """Schedule the next chunk of a running prompt, which waits if it cannot end
        where a state is cached. Returns False if there are too few blocks.
        """
        begin = sequence.num_computed_tokens
        count = min(remaining, sequence.num_tokens - begin, self._max_chunk)
        count = self._kv.align_chunk(sequence, begin, count)
        if not count:
            return True
        if not self._allocate(sequence, begin + count, step):
            return False
        self._append_chunk(sequence, count, step)
        return True

    def _schedule_with_drafts(self, step: SchedulerOutput) -> None:
        """Schedule a step in which decoding sequences verify drafts. Slower than
        `_schedule_running`.
        """
        has_prefill = False
        ends_at_preempted = self.config.scheduling_policy == "fcfs"
        for sequence in self._running.copy():
            remaining = self.config.max_num_batched_tokens - step.num_tokens
            if not remaining:
                break
            computed = sequence.num_computed_tokens
            known = sequence.num_tokens
            in_flight = known - sequence.num_prompt_tokens - sequence.num_output_tokens
            if sequence.status is not SequenceStatus.RUNNING or (
                in_flight and computed + 2 - in_flight >= sequence.num_tokens_at_end
            ):
                # It was just preempted, or running steps sample its last token even if
                # all drafts fail.
                continue
            count = min(known + sequence.num_drafts - computed, self._max_chunk, remaining)
            # As in vLLM, drafts must not reach beyond the model's last position.
            count = min(count, self._max_length - computed - 1)
            if count <= 0:
                continue
            end = min(computed + count + self.config.num_lookahead_tokens, self._max_length)
            if not self._allocate(sequence, end, step):
                if ends_at_preempted:
                    break
                continue
            has_prefill |= sequence.is_prefill_chunk
            if (
                computed + count < known
                or sequence.is_prefill_chunk
                or not sequence.num_output_tokens + in_flight
            ):
                self._append_chunk(sequence, count, step)
            else:
                self._append_decode(sequence, count, step)
        if (self._waiting or self._ready_to_resume) and not step.preempted:
            self._admit(step, can_pad=not has_prefill)
        for sequence, count in step.counts.items():
            sequence.num_in_flight += count
            sequence.is_prefill_chunk = sequence.num_computed_tokens < sequence.num_tokens
        for sequence in (*step.decodes, *step.last_chunks):
            sequence.is_prefill_chunk = False
            # The next step is scheduled before this one has proposed drafts, so it
            # reserves room for all of them.
            if self.config.async_scheduling:
                sequence.num_drafts = self.config.num_speculative_tokens

    def _append_decode(
        self, sequence: SimulatedSequence, count: int, step: SchedulerOutput
    ) -> None:
        """Append a decoding sequence that verifies count - 1 drafts; its blocks are
        allocated.
        """
        step.decodes.append(sequence)
        step.counts[sequence] = count
        if count > 1:
            step.drafts[sequence] = count - 1
            step.num_draft_tokens += count - 1
        sequence.num_computed_tokens += count
        sequence.num_tokens += count
        sequence.num_drafts = 0
        self._cache_full_blocks(sequence)

    def _update_with_drafts(
        self, step: SchedulerOutput, count_sampled: CountSampled | None
    ) -> tuple[list[SimulatedSequence], list[SimulatedSequence]]:
        sampled: list[SimulatedSequence] = []
        finished: list[SimulatedSequence] = []
        for sequence, count in step.counts.items():
            sequence.num_in_flight -= count
        for sequence in step.samplers or ():
            if sequence.status is SequenceStatus.FINISHED:
                continue
            num_drafts = step.drafts.get(sequence, 0)
            count = (
                1
                if count_sampled is None or not num_drafts
                else count_sampled(sequence, num_drafts)
            )
            # `num_output_tokens` must not pass max_tokens: the end is recognized by
            # their equality.
            count = min(count, sequence.max_tokens - sequence.num_output_tokens)
            # Padding is not counted: no drafter has proposed it.
            if num_drafts and sequence not in step.padded:
                self.stats.num_drafts += 1
                self.stats.num_draft_tokens += num_drafts
                for position in range(count - 1):
                    self.stats.num_accepted_by_position[position] += 1
            # The step counted every draft as accepted, since the next one may be
            # scheduled before the result is known.
            rejected = num_drafts + 1 - count
            sequence.num_tokens -= rejected
            sequence.num_output_tokens += count
            sequence.num_sampled = count
            sampled.append(sequence)
            self._unconfirmed.append(sequence)
            if (
                sequence.status is SequenceStatus.RUNNING
            ):  # A preempted one keeps its tokens, but has no computed ones.
                sequence.num_computed_tokens -= rejected
                if not self.config.async_scheduling:
                    sequence.num_drafts = self.config.num_speculative_tokens
            if sequence.num_output_tokens == sequence.max_tokens:
                finished.append(sequence)
        return sampled, finished

    def discard_sampled(self, sequence: SimulatedSequence, count: int) -> None:
        """Discard a sequence's last `count` tokens, which come after a stop token. Call
        it before `finish`.
        """
        sequence.num_sampled -= count
        sequence.num_output_tokens -= count
        sequence.num_tokens -= count
        if sequence.status is SequenceStatus.RUNNING:
            sequence.num_computed_tokens -= count

    def cache_accepted(self, last: SimulatedSequence | None = None) -> None:
        """Cache the blocks that accepted drafts have filled: of the sequences up to
        `last`, or of all if it is None.

        Called by `schedule` and `finish`, after the caller of `update` has appended the
        tokens.
        """
        while self._unconfirmed:
            sequence = self._unconfirmed.pop(0)
            if sequence.status is SequenceStatus.RUNNING:
                self._kv.cache(sequence, sequence.num_computed_tokens - sequence.num_in_flight)
            if sequence is last:
                return

    def _append_chunk(self, sequence: SimulatedSequence, count: int, step: SchedulerOutput) -> None:
        """Append a chunk whose blocks are allocated, and cache its full blocks.

        As in vLLM, they are cached before the step runs: all keys of a step are written
        before any is read, so requests that start together share their prompt.
        """
        begin = sequence.num_computed_tokens
        step.chunks.append(PrefillChunk(sequence, begin, count))
        step.num_chunk_tokens += count
        if self.config.num_speculative_tokens:
            step.counts[sequence] = count
        sequence.num_computed_tokens = end = begin + count
        self._cache_full_blocks(sequence)
        if end == sequence.num_tokens:
            sequence.num_tokens = end + 1
            step.last_chunks.append(sequence)
            self._prefilling.pop(sequence, None)
        elif self.offloading is not None:
            self._prefilling[sequence] = None

    def _allocate(
        self, sequence: SimulatedSequence, num_tokens: int, step: SchedulerOutput
    ) -> bool:
        """Allocate blocks for `num_tokens` tokens, preempting sequences while there are
        too few.

        Returns False if the sequence itself was preempted; with offloading also if a
        running step may still write the blocks of the sequence to preempt.
        """
        while not self._kv.allocate(sequence, num_tokens):
            # First come, first served: the last admitted sequence is preempted, and
            # goes to the front of the queue.
            victim = self._running[-1]
            if self.config.scheduling_policy == "priority":
                victim = max(self._running, key=lambda running: running.rank)
            if self.offloading is not None and victim.last_step > self._num_ended_steps:
                return False
            self._preempt(victim, step)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: SimulatedSequence, step: SchedulerOutput) -> None:
        """Preempt a running sequence, and remove it from this step; under the priority
        policy it may be part of it.
        """
        if victim in step.decodes:
            step.decodes.remove(victim)
            num_drafts = step.drafts.pop(victim, 0)
            step.num_draft_tokens -= num_drafts
            # It no longer takes part in this step, so it will not sample these tokens.
            victim.num_tokens -= 1 + num_drafts
        elif victim in step.last_chunks:
            step.last_chunks.remove(victim)
            victim.num_tokens -= 1
        if victim in step.block_fillers:
            step.block_fillers.remove(victim)
        step.chunks = [chunk for chunk in step.chunks if chunk.sequence is not victim]
        step.num_chunk_tokens = sum(chunk.num_tokens for chunk in step.chunks)
        step.counts.pop(victim, None)
        self._running.remove(victim)
        self._free(victim)
        victim.status = SequenceStatus.PREEMPTED
        victim.num_preemptions += 1
        victim.num_drafts = 0
        self.stats.num_preemptions += 1
        step.preempted.append(victim)
        self._waiting.prepend(victim)

    def _admit(self, step: SchedulerOutput, *, can_pad: bool = False) -> None:
        """Admit sequences from the queue while there is room. A sequence is skipped
        only for its adapter or a transfer with the host.

        can_pad: whether a sequence with one token left is padded with drafts, so that
            all decodes have equal length.
        """
        config = self.config
        skipped: list[SimulatedSequence] = []
        has_running = bool(step.counts)
        loras: set[str] = set()
        if self._has_loras:
            loras.update(sequence.lora for sequence in self._running if sequence.lora)
        # Fetched and loaded sequences hold blocks already, so they are resumed before
        # the queue takes more blocks.
        if (self._ready_to_resume and not self._resume_fetched(step, loras)) or (
            self._loading and not self._resume_loaded(step, loras)
        ):
            return
        while self._waiting and len(self._running) < self._max_running:
            remaining = (
                config.max_num_batched_tokens
                - len(step.decodes)
                - step.num_chunk_tokens
                - step.num_draft_tokens
            )
            if not remaining:
                break
            sequence = self._waiting[0]
            prefix = self._find_prefix(sequence, loras)
            if prefix is None:
                skipped.append(self._waiting.popleft())
                continue
            cached, num_loadable = prefix
            if sequence.cache_hit_threshold and self._end_below_threshold(
                sequence, cached.num_tokens, num_loadable
            ):
                step.below_threshold.append(sequence)
                continue
            if num_loadable or sequence.num_remote_tokens:
                if not (
                    self._start_load(sequence, cached, num_loadable)
                    if num_loadable
                    else self._start_fetch(sequence, cached, step)
                ):
                    break
                continue
            pads = can_pad and (has_running or cached.num_tokens > 0)
            if not self._start(sequence, cached, step, remaining, can_pad=pads):
                break
            if sequence.lora:
                loras.add(sequence.lora)
            self._skipped.discard(sequence)
        if skipped:
            # Skipped sequences return to their places, so they are tried first in the
            # next step.
            self._waiting.restore(skipped)
            self._skipped.update(skipped)

    def _find_prefix(
        self, sequence: SimulatedSequence, loras: set[str]
    ) -> tuple[CachedPrefix, int] | None:
        """Find the cached blocks of the head of the queue, and the number of tokens
        after them in host memory.

        Returns None if the head is skipped in this step: for its adapter, or until a
        transfer with the host ends.
        """
        if sequence.lora and self._exceeds_max_loras(sequence, loras):
            return None
        prefix = self._kv.find(sequence)
        if self.offloading is None or sequence.num_remote_tokens:
            return prefix, 0
        num_loadable = self.offloading.find_loadable(sequence, prefix.num_tokens)
        return None if num_loadable is None else (prefix, num_loadable)

    def _end_below_threshold(
        self, sequence: SimulatedSequence, num_cached: int, num_loadable: int
    ) -> bool:
        """End the head of the queue if it demands that more is cached, here, in host
        memory or by another instance. Return whether it does.

        A preempted sequence has been admitted before.
        """
        length = sequence.num_prompt_tokens
        num_available = max(num_cached + num_loadable, sequence.num_remote_tokens)
        if (
            sequence.num_cached_tokens is not None
            or num_available / length >= sequence.cache_hit_threshold
        ):
            return False
        self.stats.prefix_cache_queries += length
        self.stats.prefix_cache_hits += num_cached
        self.finish(sequence, aborted=True)
        return True

    def _exceeds_max_loras(self, sequence: SimulatedSequence, loras: set[str]) -> bool:
        """Whether this sequence's adapter would exceed max_loras, given the adapters
        that run.
        """
        return sequence.lora not in loras and len(loras) >= self.config.max_loras

    def _resume_fetched(self, step: SchedulerOutput, loras: set[str]) -> bool:
        """Resume sequences whose prompt has been fetched. Returns False if the step has
        no room for one of them.

        They hold blocks, so they never wait for sequences that need blocks, which would
        be a deadlock.
        """
        waiting = self._ready_to_resume
        self._ready_to_resume = deque[SimulatedSequence]()
        while waiting and len(self._running) < self._max_running:
            remaining = self.config.max_num_batched_tokens - step.num_tokens
            sequence = waiting[0]
            count = min(sequence.num_tokens - sequence.num_computed_tokens, self._max_chunk)
            if not remaining or (count > remaining and not self.config.enable_chunked_prefill):
                break
            waiting.popleft()
            if sequence.lora and self._exceeds_max_loras(sequence, loras):
                self._ready_to_resume.append(sequence)
                continue
            sequence.status = SequenceStatus.RUNNING
            self._running.append(sequence)
            step.admitted.append(sequence)
            self._append_chunk(sequence, min(count, remaining), step)
            if sequence.lora:
                loras.add(sequence.lora)
        self._ready_to_resume += waiting
        return not waiting

    def _resume_loaded(self, step: SchedulerOutput, loras: set[str]) -> bool:
        """Resume sequences that were loaded from the host. Returns False if the step
        has no room for one of them.
        """
        for sequence in self._loading.copy():
            remaining = self.config.max_num_batched_tokens - step.num_tokens
            if not remaining or len(self._running) >= self._max_running:
                return False
            if sequence in self._loaded:
                self._loaded.remove(sequence)
                # Before `num_computed_tokens` is lowered: a full last block is cached,
                # although its last token is recomputed.
                self._cache_full_blocks(sequence)
                # The last token is recomputed, to sample the next one.
                sequence.num_computed_tokens = min(
                    sequence.num_computed_tokens, sequence.num_tokens - 1
                )
                sequence.is_loaded = True
            if not sequence.is_loaded or (
                sequence.lora and self._exceeds_max_loras(sequence, loras)
            ):
                continue
            count = min(sequence.num_tokens - sequence.num_computed_tokens, self._max_chunk)
            if count > remaining and not self.config.enable_chunked_prefill:
                return False
            count = min(count, remaining)
            end = sequence.num_computed_tokens + count
            reserved = (
                max(sequence.num_tokens, end) if self.config.scheduler_reserve_full_isl else end
            )
            # It holds only blocks for the loaded tokens.
            missing = max(0, -(-reserved // self.config.block_size) - len(sequence.blocks))
            if missing + (self._watermark if self._running else 0) > self.pool.num_free:
                return False
            self._loading.remove(sequence)
            sequence.is_loaded = False
            sequence.status = SequenceStatus.RUNNING
            self._running.append(sequence)
            step.admitted.append(sequence)
            self._allocate(sequence, end, step)
            self._append_chunk(sequence, count, step)
            if sequence.lora:
                loras.add(sequence.lora)
        return True

    def _start_load(
        self, sequence: SimulatedSequence, prefix: CachedPrefix, num_tokens: int
    ) -> bool:
        """Allocate blocks for the head of the queue, to be loaded from the host.
        Returns False without enough blocks.

        A load cannot be preempted, so it must leave the blocks that unfinished prompts
        still need.
        """
        assert self.offloading is not None
        block_size = self.config.block_size
        (hits,) = prefix.blocks
        cached = prefix.num_tokens
        end = cached + num_tokens
        reserved = sum(
            max(
                0,
                -(-(other.num_prompt_tokens + other.num_output_tokens) // block_size)
                - len(other.blocks),
            )
            for other in (*self._prefilling, *self._loading)
        )
        missing = -(-end // block_size) - len(hits) + self.pool.count_free(hits)
        watermark = self._watermark if self._running else 0
        if missing + watermark > self.pool.num_free - reserved or not self._can_admit(
            sequence, prefix, end
        ):
            return False
        self._waiting.popleft()
        is_first = sequence.num_cached_tokens is None
        self._acquire_prefix(sequence, prefix)
        sequence.blocks += self.pool.allocate(-(-end // block_size) - len(hits))
        self.offloading.record_admission(sequence, cached, num_tokens)
        self.offloading.begin_load(sequence, cached, num_tokens)
        sequence.num_computed_tokens = end
        if is_first:
            # The last token is recomputed when the sequence resumes, so it does not
            # count as cached.
            sequence.num_cached_tokens = min(end, sequence.num_tokens - 1)
            sequence.num_loaded_tokens = sequence.num_cached_tokens - cached
        sequence.status = SequenceStatus.LOADING
        self._skipped.discard(sequence)
        if self.config.scheduling_policy == "priority":
            insort(self._loading, sequence, key=lambda loading: loading.queue_rank)
        else:
            self._loading.append(sequence)
        return True

    def _start_fetch(
        self, sequence: SimulatedSequence, prefix: CachedPrefix, step: SchedulerOutput
    ) -> bool:
        """Allocate blocks for the whole prompt, to be fetched from another instance.
        Returns False without enough free blocks.

        Cached blocks are not fetched; if all are cached, the sequence stays in the
        queue like any other.
        """
        missing = min(sequence.num_remote_tokens, sequence.num_prompt_tokens) - prefix.num_tokens
        if missing <= 0:
            sequence.num_remote_tokens = 0
            # Reported nevertheless, so that the other instance is notified to free its
            # blocks.
            step.fetching.append(RemoteFetch(sequence, 0))
            return True
        if not self._can_admit(sequence, prefix, sequence.num_tokens):
            return False
        self._waiting.popleft()
        self._acquire_prefix(sequence, prefix)
        self._allocate(sequence, sequence.num_tokens, step)
        sequence.status = SequenceStatus.FETCHING
        self._skipped.discard(sequence)
        self._fetching.append(sequence)
        step.fetching.append(RemoteFetch(sequence, missing))
        return True

    def _can_admit(self, sequence: SimulatedSequence, prefix: CachedPrefix, end: int) -> bool:
        return self._kv.can_admit(
            prefix,
            end,
            sequence.num_tokens if self.config.scheduler_reserve_full_isl else 0,
            self.pool.num_free - (self._watermark if self._running else 0),
        )

    def _start(
        self,
        sequence: SimulatedSequence,
        prefix: CachedPrefix,
        step: SchedulerOutput,
        remaining: int,
        *,
        can_pad: bool,
    ) -> bool:
        """Move the head of the queue into the step, with as many tokens as fit. Returns
        False if it does not fit.
        """
        config = self.config
        cached = prefix.num_tokens
        count = min(sequence.num_tokens - cached, self._max_chunk)
        padded = 1 + config.num_speculative_tokens
        is_padded = (
            can_pad
            and sequence.num_tokens - cached == 1
            and cached + padded + 1 <= self._max_length
        )
        if is_padded:
            count = padded
        # Padding is not split into chunks: a shorter decode would differ from the
        # others.
        if count > remaining and (is_padded or not config.enable_chunked_prefill):
            return False
        count = min(count, remaining)
        if self._has_groups:
            sequence.junction = prefix.junction
            count = self._kv.align_chunk(sequence, cached, count)
            if not count:
                return False
        end = min(cached + count + config.num_lookahead_tokens, self._max_length)
        if not self._can_admit(sequence, prefix, end):
            return False
        self._waiting.popleft()
        self._acquire_prefix(sequence, prefix)
        sequence.status = SequenceStatus.RUNNING
        self._running.append(sequence)
        step.admitted.append(sequence)
        self._allocate(sequence, end, step)
        if self.offloading is not None:
            self.offloading.record_admission(sequence, cached, 0)
        if is_padded:
            step.padded.add(sequence)
            self._append_decode(sequence, count, step)
        else:
            self._append_chunk(sequence, count, step)
        return True

    def _acquire_prefix(self, sequence: SimulatedSequence, prefix: CachedPrefix) -> None:
        """Acquire the blocks of the cached prefix, and count the hits."""
        self._kv.acquire(sequence, prefix)
        sequence.num_computed_tokens = prefix.num_tokens
        # A preempted sequence is not counted again: its hits are mostly blocks that it
        # computed itself.
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.stats.prefix_cache_queries += sequence.num_prompt_tokens
            self.stats.prefix_cache_hits += sequence.num_computed_tokens

    def _cache_full_blocks(self, sequence: SimulatedSequence) -> None:
        """Cache a sequence's full blocks, as far as their tokens are known."""
        num_known = sequence.num_prompt_tokens + sequence.num_output_tokens
        self._kv.cache(sequence, min(sequence.num_computed_tokens, num_known))

    def _free(self, sequence: SimulatedSequence) -> None:
        if self.offloading is not None and sequence.last_step > self._num_ended_steps:
            self._deferred_frees.append((self._num_scheduled_steps, sequence.blocks))
        elif self._has_groups:
            self._kv.release(sequence)
        else:
            self.pool.release(sequence.blocks)
        self._prefilling.pop(sequence, None)
        sequence.blocks = []
        sequence.num_computed_tokens = 0
