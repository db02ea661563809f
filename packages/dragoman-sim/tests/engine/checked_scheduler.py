"""A driver that runs a scheduler step by step and checks all invariants after each
step.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import MutableSequence

from dragoman_sim.engine.block_hashes import TokenContents
from dragoman_sim.engine.block_pool import (
    NULL_BLOCK,
    AllBlocksCleared,
    BlockCached,
    BlockRemoved,
    CacheEvent,
    SimulatedBlockPool,
)
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.scheduler_output import SchedulerOutput
from dragoman_sim.engine.sequence import SequenceStatus, SimulatedSequence


def sequence(
    id: str,
    prompt: list[int],
    max_tokens: int,
    block_size: int = 4,
    priority: int = 0,
    arrival: float = 0.0,
    lora: str = "",
) -> SimulatedSequence:
    return SimulatedSequence(
        id,
        num_prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        contents=TokenContents(block_size, prompt.copy()),
        priority=priority,
        arrival=arrival,
        lora=lora,
    )


def known_tokens(sequence: SimulatedSequence) -> MutableSequence[int]:
    assert isinstance(sequence.contents, TokenContents)
    return sequence.contents.tokens


def sample(sequence: SimulatedSequence) -> None:
    """Return a token that no other sequence has at this position."""
    known_tokens(sequence).append(
        1000 * (1 + sum(map(ord, sequence.id))) + sequence.num_output_tokens
    )


class Driver:
    """Runs a scheduler step by step.

    depth: steps in flight; 2 for asynchronous scheduling.
    """

    def __init__(self, config: SimulatedSchedulerConfig, depth: int) -> None:
        self.config = config
        self.pool = SimulatedBlockPool(config.num_gpu_blocks, record=True)
        self.scheduler = SimulatedScheduler(config, self.pool)
        self.sequences: list[SimulatedSequence] = []
        self.finished: list[str] = []
        self.admitted: list[str] = []
        self.got: Counter[str] = Counter()
        self.computed: Counter[str] = Counter()
        self.hits = 0
        self.index: dict[int, bytes] = {}
        self._depth = depth
        self._known: set[tuple[int, ...]] = set()
        self._flights: deque[SchedulerOutput] = deque()
        self._fetches: deque[SimulatedSequence] = deque()
        self._held: list[SimulatedSequence] = []
        self._filled: set[SimulatedSequence] = set()
        self.lost: frozenset[str] = frozenset()
        """Ids of those whose prompt never comes from where it was computed."""

    def add(self, added: SimulatedSequence) -> None:
        self.scheduler.add(added)
        self.sequences.append(added)

    def abort(self, aborted: SimulatedSequence) -> None:
        held = list(aborted.blocks)
        free = self.pool.num_free
        self.scheduler.finish(aborted)
        assert self.pool.num_free == free + sum(
            self.pool.get_ref_count(block) == 0 for block in held
        )
        self._check()

    def step(self) -> None:
        """End the oldest step and begin others, as the engine's loop does."""
        self._simulate_transfers()
        if self._flights:
            ended = self._flights.popleft()
            sampled, finished = self.scheduler.update(ended)
            for each in sampled:
                sample(each)
            for each in ended.decodes:
                self._learn(each, each.num_computed_tokens)
            for each in finished:
                self.scheduler.finish(each)
            self.got.update(each.id for each in sampled)
            self.finished += [each.id for each in finished]
            self._held += [each for each in finished if each.keeps_blocks]
        while len(self._flights) < self._depth:
            step = self.scheduler.schedule()
            self._check_step(step)
            self._fetches.extend(fetch.sequence for fetch in step.fetching if fetch.num_tokens)
            if not step.num_tokens:
                break
            self._flights.append(step)
        self._check()

    def _simulate_transfers(self) -> None:
        """Simulate other instances: one has fetched the blocks held for it, one has
        sent (or lost) blocks for us.
        """
        if self._held:
            self.scheduler.release(self._held.pop(0))
        if not self._fetches or self._fetches[0].status is not SequenceStatus.FETCHING:
            self._fetches = deque(
                each for each in self._fetches if each.status is SequenceStatus.FETCHING
            )
            return
        fetched = self._fetches.popleft()
        if fetched.id in self.lost:
            self.scheduler.fail_fetch(fetched)
        else:
            self.scheduler.complete_fetch(fetched)
            self._filled.add(fetched)
            self._learn(fetched, fetched.num_computed_tokens)

    def run(self) -> None:
        for _ in range(20_000):
            if not (
                self.scheduler.num_running
                or self.scheduler.num_waiting
                or self._flights
                or self._held
            ):
                return
            self.step()
        raise AssertionError("this never ends")

    def _check_step(self, step: SchedulerOutput) -> None:
        assert step.num_tokens <= self.config.max_num_batched_tokens
        assert step.num_tokens == len(step.decodes) + sum(chunk.num_tokens for chunk in step.chunks)
        taking_part = [each.id for each in step.decodes] + [
            chunk.sequence.id for chunk in step.chunks
        ]
        assert len(taking_part) == len(set(taking_part)), "no sequence takes part twice"
        assert not (step.admitted and step.preempted)
        assert not {each.id for each in step.preempted}.intersection(taking_part)
        alone = self.scheduler.num_running + self.scheduler.num_waiting < 2
        threshold = (
            not alone and self.config.long_prefill_token_threshold
        ) or self.config.max_num_batched_tokens
        for chunk in step.chunks:
            assert 0 < chunk.num_tokens <= threshold
            self.computed[chunk.sequence.id] += chunk.num_tokens
        self.computed.update(each.id for each in step.decodes)
        self.admitted += [each.id for each in step.admitted if each.num_preemptions == 0]
        self._check_hits(step)

    def _check_hits(self, step: SchedulerOutput) -> None:
        """Check that cache hits were computed by an earlier step, or by an earlier
        sequence of this step.
        """
        for each in step.decodes:
            self._learn(each, each.num_computed_tokens)
        for chunk in step.chunks:
            begins = chunk.num_computed_tokens
            if chunk.sequence in step.admitted and begins and chunk.sequence not in self._filled:
                assert begins % self.config.block_size == 0
                assert begins < chunk.sequence.num_tokens, "the last token is never a cache hit"
                assert tuple(known_tokens(chunk.sequence)[:begins]) in self._known
                self.hits += 1
            self._learn(chunk.sequence, begins + chunk.num_tokens)

    def _learn(self, computed: SimulatedSequence, count: int) -> None:
        tokens = known_tokens(computed)
        size = self.config.block_size
        self._known.update(
            tuple(tokens[:end]) for end in range(size, min(count, len(tokens)) + 1, size)
        )

    def _check(self) -> None:
        self._check_blocks()
        assert self.scheduler.num_running <= self.config.max_num_seqs
        for each in self.scheduler.list_running():
            assert each.status is SequenceStatus.RUNNING
            assert len(each.blocks) == -(-each.num_computed_tokens // self.config.block_size)
        for each in self.scheduler.list_waiting():
            if each.status in (SequenceStatus.FETCHING, SequenceStatus.FETCHED):
                assert len(each.blocks) == -(-each.num_tokens // self.config.block_size), (
                    "memory for all future tokens"
                )
            else:
                assert each.status in (SequenceStatus.WAITING, SequenceStatus.PREEMPTED)
                assert not each.blocks
        for event in self.pool.take_events():
            self._apply(event)
        assert self.index == self.pool.list_cached_blocks(), (
            "an index of all events equals the pool's contents"
        )

    def _check_blocks(self) -> None:
        holders = Counter(block for each in self.sequences for block in each.blocks)
        assert NULL_BLOCK not in holders
        for block in range(1, self.config.num_gpu_blocks):
            assert self.pool.get_ref_count(block) == holders[block]
        assert self.pool.num_free == self.pool.size - len(holders), (
            "no block is both free and used, none is lost"
        )

    def _apply(self, event: CacheEvent) -> None:
        match event:
            case BlockCached(block, name):
                self.index[block] = name
            case BlockRemoved(block, name):
                assert self.index.pop(block) == name
            case AllBlocksCleared():
                self.index.clear()
