"""A fast replica for independent requests: its cost per step does not depend on the
number of decoding sequences.

For requests without shared prefixes it makes the same decisions, and returns the same
times, as the simulator's `scheduler` and `engine_core`. A step does not touch the
decoding sequences one by one: each advances by one token, so the sum of their contexts,
the blocks that a step needs and the step in which each ends follow from numbers that
change only when a sequence starts or stops decoding. Blocks have no ids: no other
request can hit a cached block, so the pool only counts blocks, in the order of their
eviction.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from ..engine.latency import LatencyModel, MemoizedLatency
from ..engine.scheduler_config import SimulatedSchedulerConfig
from .block_counts import BlockCounts, CachedBlocks
from .weighted_sample import WeightedSample

_FEWEST_STEPS_AT_ONCE = 16
_MOST_STEPS_AT_ONCE = 1024
"""Bounds of a run of decoding steps that is computed with arrays; for fewer steps
arrays are slower.
"""


class RequestTimes(Struct):
    """Results of the requests, as columns in the order of the workload.

    scheduled, first_token, last_token: seconds.
    preemptions: number of preemptions.
    replicas: index of the replica.
    """

    scheduled: array[float]
    first_token: array[float]
    last_token: array[float]
    preemptions: array[int]
    replicas: array[int]

    @classmethod
    def allocate(cls, count: int) -> RequestTimes:
        columns = [array("d", bytes(8 * count)) for _ in range(3)]
        return cls(
            columns[0],
            columns[1],
            columns[2],
            array("i", bytes(4 * count)),
            array("i", bytes(4 * count)),
        )


class LoadTotals(Struct):
    """Load of all replicas together, integrated over the time of all steps.

    used_blocks: block-seconds in use.
    running, waiting: request-seconds.
    most_used_blocks: maximum of blocks in use on one replica.
    steps: number of steps.
    rounds: number of loop iterations; a run of decoding steps takes one.
    """

    used_blocks: float = 0.0
    running: float = 0.0
    waiting: float = 0.0
    most_used_blocks: int = 0
    steps: int = 0
    rounds: int = 0


class PlainReplicaState(NamedTuple):
    """What a replica's next steps depend on, as far as it is not counted by request.

    step_end: end of the running step, in seconds; None if none runs.
    """

    step_end: float | None
    num_running: int
    num_waiting: int
    num_free_blocks: int


class PlainSequence:
    """A sequence of the replica.

    index: index of the request in the workload.
    num_tokens, num_computed_tokens: as in `SimulatedSequence`; valid while it waits or
        prefills.
    num_tokens_at_end: tokens of prompt and output.
    offset: while it decodes, the tokens computed after a step minus the step's number.
    last_chunk_step: step of its last prefill chunk, also after a preemption.
    last_step: step in which it finishes.
    last_token_at: time of its last token before its preemption, in seconds; 0 without
        one.
    cached: its cached blocks since its preemption; None without any.
    """

    __slots__ = (
        "cached",
        "index",
        "is_decoding",
        "last_chunk_step",
        "last_step",
        "last_token_at",
        "num_computed_tokens",
        "num_tokens",
        "num_tokens_at_end",
        "offset",
    )

    def __init__(self, index: int, num_prompt_tokens: int, max_tokens: int) -> None:
        self.index = index
        self.num_tokens = num_prompt_tokens
        self.num_tokens_at_end = num_prompt_tokens + max_tokens
        self.num_computed_tokens = 0
        self.offset = self.last_chunk_step = self.last_step = 0
        self.last_token_at = 0.0
        self.is_decoding = False
        self.cached: CachedBlocks | None = None


class _Step:
    """The load of a step, as in `latency.StepLoad`.

    samplers: sequences that complete their prompt in this step.
    preempts: a sequence was preempted while the step was scheduled.
    """

    __slots__ = ("context", "pairs", "preempts", "samplers", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens = self.context = self.sequences = 0
        self.pairs = 0.0
        self.samplers: list[PlainSequence] = []
        self.preempts = False

    def add_chunk(self, sequence: PlainSequence, count: int) -> None:
        self.tokens += count
        self.sequences += 1
        self.pairs += count * (sequence.num_computed_tokens + count / 2)


class PlainReplica:
    """One engine core. For each arrival call `advance` up to its time, then `enqueue`.

    times: receives the times of the replica's requests.
    totals, gaps: load and inter-token latencies; shared by all replicas.
    """

    def __init__(
        self,
        config: SimulatedSchedulerConfig,
        latency: LatencyModel,
        times: RequestTimes,
        totals: LoadTotals,
        gaps: WeightedSample,
    ) -> None:
        self._config = config
        self._times = times
        self._totals = totals
        self._gaps = gaps
        self._compute_seconds = MemoizedLatency(latency)
        self._block_size = config.block_size
        self._budget = config.max_num_batched_tokens
        self._max_running = config.max_num_active_seqs or config.max_num_seqs
        self._watermark = int(config.watermark * config.num_gpu_blocks)
        self._depth = 2 if config.async_scheduling else 1
        self._pool = BlockCounts(config.num_gpu_blocks - 1)
        self._waiting: deque[PlainSequence] = deque()
        self._running: dict[PlainSequence, None] = {}
        """Running sequences, in order of admission."""
        self._partial: PlainSequence | None = None
        """The sequence in prefill. It took the rest of a step's budget, so there is at
        most one, the last admitted.
        """
        self._wake_at = 0.0
        self._in_flight: deque[tuple[float, float]] = deque()
        """Begin and end times of the steps in flight, in seconds."""
        self._num_scheduled = self._num_completed = 0
        self._last_end = 0.0
        self._num_decoding = 0
        self._sum_offsets: int = 0
        self._num_at_boundary = [0] * config.block_size
        """Numbers of decoding sequences that need a new block in a step, by step number
        modulo the block size.
        """
        self._ending: dict[int, list[PlainSequence]] = {}
        """Sequences by their last step."""
        self._ending_steps: list[int] = []
        """Heap of the keys of `_ending`."""

    @property
    def state(self) -> PlainReplicaState:
        """The state after the events that `advance` has run."""
        return PlainReplicaState(
            self._in_flight[0][1] if self._in_flight else None,
            len(self._running),
            len(self._waiting),
            self._pool.num_free,
        )

    def enqueue(self, index: int, num_prompt_tokens: int, max_tokens: int, now: float) -> None:
        if not self._in_flight and not self._waiting:
            self._wake_at = now
        self._waiting.append(PlainSequence(index, num_prompt_tokens, max_tokens))

    def advance(self, limit: float) -> None:
        """Run all events before `limit`, in seconds. A request that arrives when a step
        ends can join the next step.
        """
        in_flight = self._in_flight
        while True:
            if not in_flight:
                if not self._waiting or self._wake_at >= limit:
                    return
                self._launch(self._wake_at)
                continue
            begin, end = in_flight[0]
            if end >= limit:
                return
            if not self._waiting and self._partial is None and self._jump(limit):
                continue
            in_flight.popleft()
            self._num_completed += 1
            for sequence in self._ending.pop(self._num_completed, ()):
                self._times.last_token[sequence.index] = end
                if sequence.is_decoding:
                    self._stop_decoding(sequence)
                if sequence in self._running:
                    del self._running[sequence]
                    self._release(sequence, sequence.num_tokens_at_end - 1, is_last_filled=True)
                else:
                    self._waiting.remove(sequence)  # Preempted while its last token was on its way.
            self._launch(end)
            # The load right after a step is weighted with the step's duration.
            seconds = end - begin
            totals = self._totals
            used = self._pool.size - self._pool.num_free
            totals.used_blocks += seconds * used
            totals.running += seconds * len(self._running)
            totals.waiting += seconds * len(self._waiting)
            totals.most_used_blocks = max(totals.most_used_blocks, used)
            totals.steps += 1
            totals.rounds += 1

    def _release(
        self,
        sequence: PlainSequence,
        num_tokens: int,
        *,
        is_last_filled: bool,
        is_owned: bool = False,
    ) -> None:
        """Free a sequence's blocks.

        num_tokens: tokens in the blocks.
        is_last_filled: if the last token fills a block, that block is cached too.
        is_owned: the sequence may acquire its cached blocks again.
        """
        size = self._block_size
        cached = (
            (num_tokens - (not is_last_filled)) // size if self._config.enable_prefix_caching else 0
        )
        sequence.cached = self._pool.release(-(-num_tokens // size), cached, is_owned=is_owned)

    def _launch(self, now: float) -> None:
        """Schedule steps until the pipeline is full, like `EngineCore.launch`."""
        while len(self._in_flight) < self._depth:
            step = self._schedule(now)
            if not step.tokens:
                if self._in_flight or not step.preempts:
                    break
                continue
            begin = self._in_flight[-1][1] if self._in_flight else now
            end = begin + self._compute_seconds(
                step.tokens, step.context, step.pairs, step.sequences
            )
            self._in_flight.append((begin, end))
            self._num_scheduled += 1
            if self._num_decoding:
                self._gaps.add(end - self._last_end, self._num_decoding)
            self._last_end = end
            # Sequences that complete their prompt get a token at the end of the step.
            for sequence in step.samplers:
                if sequence.last_token_at:
                    self._gaps.add(end - sequence.last_token_at, 1)
                else:
                    self._times.first_token[sequence.index] = end
                number = sequence.last_chunk_step = self._num_scheduled
                # Relative to the step's number, so that a decoding sequence needs no
                # update per step.
                sequence.offset = sequence.num_computed_tokens - number
                sequence.last_step = sequence.num_tokens_at_end - 1 - sequence.offset
                if (ending := self._ending.get(sequence.last_step)) is not None:
                    ending.append(sequence)
                else:
                    self._ending[sequence.last_step] = [sequence]
                    heappush(self._ending_steps, sequence.last_step)
                if sequence.last_step > number:
                    sequence.is_decoding = True
                    self._num_decoding += 1
                    self._sum_offsets += sequence.offset
                    self._num_at_boundary[(1 - sequence.offset) % self._block_size] += 1

    def _schedule(self, now: float) -> _Step:
        number = self._num_scheduled + 1
        step = _Step()
        partial = self._partial
        # Their last token is in flight: they join no further step, but keep their
        # blocks until that one ends.
        for sequence in self._ending.get(self._num_scheduled, ()):
            if sequence.is_decoding:
                self._stop_decoding(sequence)
        # Decoding sequences are counted by the step in which they need a block, so none
        # of them is visited.
        missing = self._num_at_boundary[number % self._block_size]
        count = 0
        if partial is not None:
            count = min(
                partial.num_tokens - partial.num_computed_tokens, self._budget - self._num_decoding
            )
            missing += self._count_missing(partial, count)
        if missing <= self._pool.num_free:
            self._pool.allocate(missing)
        else:
            self._preempt_sequences(number, count)
            step.preempts = True
            partial = None
        step.tokens = step.sequences = self._num_decoding
        step.context = self._sum_offsets + self._num_decoding * number
        if partial is not None:
            if partial.num_tokens - partial.num_computed_tokens == 1:
                # The scheduler treats a prompt with one token left like a decoding
                # sequence.
                step.tokens += 1
                step.sequences += 1
                step.context += partial.num_tokens
            else:
                step.add_chunk(partial, count)
            partial.num_computed_tokens += count
            if partial.num_computed_tokens == partial.num_tokens:
                self._partial = None
                step.samplers.append(partial)
        if self._waiting and not step.preempts:
            self._admit(step, now)
        return step

    def _stop_decoding(self, sequence: PlainSequence) -> None:
        sequence.is_decoding = False
        self._num_decoding -= 1
        self._sum_offsets -= sequence.offset
        self._num_at_boundary[(1 - sequence.offset) % self._block_size] -= 1

    def _count_missing(self, sequence: PlainSequence, count: int) -> int:
        """Count the blocks that a chunk needs."""
        computed = sequence.num_computed_tokens
        size = self._block_size
        return -(-(computed + count) // size) + -computed // size

    def _admit(self, step: _Step, now: float) -> None:
        """Admit waiting sequences, like `SimulatedScheduler._admit`."""
        config = self._config
        size = self._block_size
        pool = self._pool
        running = self._running
        waiting = self._waiting
        while waiting and len(running) < self._max_running:
            remaining = self._budget - step.tokens
            if not remaining:
                break
            sequence = waiting[0]
            num_cached_blocks = sequence.cached.count if sequence.cached is not None else 0
            cached = num_cached_blocks * size
            count = sequence.num_tokens - cached
            if count > remaining and not config.enable_chunked_prefill:
                break
            count = min(count, remaining)
            reserved = sequence.num_tokens if config.scheduler_reserve_full_isl else cached + count
            if -(-reserved // size) + (self._watermark if running else 0) > pool.num_free:
                break
            waiting.popleft()
            if sequence.cached is not None:
                pool.acquire(sequence.cached)
                sequence.cached = None
            pool.allocate(-(-(cached + count) // size) - num_cached_blocks)
            running[sequence] = None
            sequence.num_computed_tokens = cached
            step.add_chunk(sequence, count)
            sequence.num_computed_tokens += count
            times = self._times.scheduled
            index = sequence.index
            # A preempted request is admitted again; only the first admission counts.
            times[index] = times[index] or now
            if sequence.num_computed_tokens == sequence.num_tokens:
                step.samplers.append(sequence)
            else:
                self._partial = sequence

    def _preempt_sequences(self, number: int, count: int) -> None:
        """Schedule running sequences in order, and preempt the last ones until the
        blocks suffice.

        number: number of the step.
        count: tokens of the chunk of the sequence in prefill.
        """
        pool = self._pool
        for sequence in list(self._running):
            if sequence is self._partial:
                missing = self._count_missing(sequence, count)
            elif sequence.is_decoding:
                missing = int((sequence.offset + number - 1) % self._block_size == 0)
            else:
                continue
            while missing > pool.num_free:
                victim, _ = self._running.popitem()
                is_filled = self._depth == 1 or victim.last_chunk_step == number - 1
                if victim is self._partial:
                    computed = victim.num_computed_tokens
                    self._partial = None
                    is_filled = True
                elif victim.is_decoding:
                    computed = victim.offset + number - 1
                    victim.num_tokens = computed + 1
                    victim.last_token_at = self._last_end
                    self._ending[victim.last_step].remove(victim)
                    self._stop_decoding(victim)
                else:
                    computed = victim.num_tokens_at_end - 1
                self._release(victim, computed, is_last_filled=is_filled, is_owned=True)
                self._times.preemptions[victim.index] += 1
                self._waiting.appendleft(victim)
                if victim is sequence:
                    return
            pool.allocate(missing)

    def _jump(self, limit: float) -> bool:
        """Run decode-only steps up to the next event, all at once. Return False if too
        few steps remain.

        Events are arrivals, sequences that finish, and a lack of blocks.
        """
        # Steps that have ended are removed from the heap lazily, here.
        while self._ending_steps and self._ending_steps[0] not in self._ending:
            heappop(self._ending_steps)
        if not self._num_decoding or len(self._in_flight) < self._depth:
            return False
        max_steps = min(self._ending_steps[0] - self._num_scheduled, _MOST_STEPS_AT_ONCE)
        begin, end = self._in_flight[-1]
        # For a few steps arrays are slower.
        if max_steps < _FEWEST_STEPS_AT_ONCE or end + _FEWEST_STEPS_AT_ONCE * (end - begin) > limit:
            return False
        max_steps = (
            min(max_steps, int((limit - end) / (end - begin)) + 2)
            if limit < float("inf")
            else max_steps
        )
        steps = np.arange(self._num_scheduled + 1, self._num_scheduled + 1 + max_steps)
        allocated = np.cumsum(np.array(self._num_at_boundary)[steps % self._block_size])
        contexts = self._sum_offsets + self._num_decoding * steps
        seconds = self._compute_seconds.compute_decoding(self._num_decoding, contexts)
        in_flight = [flight[1] for flight in self._in_flight]
        # From the first step in flight on. Summed in order, as single steps are, so
        # that both give the same floats.
        ends = np.concatenate(
            (in_flight[:-1], np.cumsum(np.concatenate((in_flight[-1:], seconds))))
        )
        # Up to the next arrival, or until the blocks run out and a sequence has to be
        # preempted.
        totals = self._totals
        pool = self._pool
        depth = self._depth
        count = int(
            min(
                np.searchsorted(ends[:max_steps], limit),
                np.searchsorted(allocated, pool.num_free, side="right"),
            )
        )
        if not count:
            return False
        # Complete `count` steps, and schedule as many.
        lengths = np.diff(ends[:count], prepend=self._in_flight[0][0])
        used = pool.size - pool.num_free + allocated[:count]
        totals.used_blocks += float(lengths @ used)
        totals.running += float(lengths.sum()) * len(self._running)
        totals.most_used_blocks = max(totals.most_used_blocks, int(used[-1]))
        totals.steps += count
        totals.rounds += 1
        self._gaps.add_many(np.diff(ends[depth - 1 : depth + count]), self._num_decoding)
        pool.allocate(int(allocated[count - 1]))
        self._num_completed += count
        self._num_scheduled += count
        in_flight = [float(end) for end in ends[count - 1 : count + depth]]
        self._in_flight.clear()
        self._in_flight.extend(pairwise(in_flight))
        self._last_end = in_flight[-1]
        return True
