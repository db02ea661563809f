"""Scheduling: admission, chunked prefill, preemption. Needs no model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.token_engine import TokenRequest
from dragoman.engines.batching import BLOCK_SIZE, SchedulerConfig, build_rng
from dragoman.engines.batching.block_pool import BlockPool
from dragoman.engines.batching.scheduler import Chunk, Scheduler
from dragoman.engines.batching.sequence import Sequence
from dragoman.engines.batching.state_slots import StateSlots

MOST = 200
"""max_model_len."""


class Plan:
    """A scheduler, its pool, and a model that always emits token 1.

    slots: for a model with state besides keys and values.
    """

    def __init__(self, blocks: int = 64, slots: int | None = None, **limits: int) -> None:
        self.pool = BlockPool(blocks + 1)
        self.slots = None if slots is None else StateSlots(slots)
        self.owners: dict[int, tuple[int, int]] = {}
        """Of each slot: the key of the sequence that wrote to it last, and up to which
        token.
        """
        self.config = replace(SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64), **limits)
        self.scheduler = Scheduler(self.config, self.pool, slots=self.slots)
        self.sequences: list[Sequence] = []

    def add(
        self, length: int, answer: int = 4, *, first: int = 0, priority: int = 0, salt: str = ""
    ) -> Sequence:
        """first: the first token; the others count up, so that equal ones share a
        prefix.
        """
        key = len(self.sequences)
        prompt = tuple(range(first, first + length))
        request = TokenRequest(
            id=str(key), prompt=prompt, max_tokens=answer, priority=priority, cache_salt=salt
        )
        self.sequences.append(
            Sequence(key, request, vocab=8, max_model_len=MOST, rng_factory=build_rng)
        )
        self.scheduler.add(self.sequences[-1])
        return self.sequences[-1]

    def step(self) -> list[tuple[int, int]]:
        """Return (key, tokens) of each chunk of one step."""
        chunks = self.scheduler.schedule()
        self.check(chunks)
        self.scheduler.commit(chunks)
        for chunk in chunks:
            if chunk.end == chunk.sequence.num_tokens and chunk.sequence.append(1):
                self.scheduler.remove(chunk.sequence)
        return [(chunk.sequence.key, chunk.num_tokens) for chunk in chunks]

    def check(self, chunks: list[Chunk]) -> None:
        assert sum(chunk.num_tokens for chunk in chunks) <= self.config.max_num_batched_tokens
        assert self.scheduler.num_running <= self.config.max_num_seqs
        assert len({chunk.sequence.key for chunk in chunks}) == len(chunks)
        written: list[int] = []
        for chunk in chunks:
            assert chunk.num_tokens > 0
            assert chunk.begin == chunk.sequence.num_computed_tokens
            assert len(chunk.sequence.blocks) == -(-chunk.end // BLOCK_SIZE)
            written += chunk.sequence.blocks[chunk.begin // BLOCK_SIZE :]
        assert len(set(written)) == len(written), "two sequences write to one block"
        if self.slots:
            self.check_slots(chunks)

    def check_slots(self, chunks: list[Chunk]) -> None:
        slots = [chunk.sequence.state_slot for chunk in chunks]
        assert len(set(slots)) == len(slots), "two sequences have one slot"
        for chunk, slot in zip(chunks, slots, strict=True):
            assert slot is not None
            assert chunk.begin == 0 or self.owners[slot] == (chunk.sequence.key, chunk.begin)
            self.owners[slot] = (chunk.sequence.key, chunk.end)


def test_schedule_chunks_prefill_to_budget_after_decode() -> None:
    plan = Plan()
    plan.add(10)
    plan.add(100, first=500)
    assert plan.step() == [(0, 10), (1, 54)]
    assert plan.step() == [(0, 1), (1, 46)]
    assert plan.step() == [(0, 1), (1, 1)]


def test_schedule_puts_decode_before_older_prefill() -> None:
    plan = Plan(max_step_pairs=2000)
    plan.add(150)
    plan.add(5, first=500)
    assert plan.step() == [(0, 31), (1, 5)]
    assert plan.step() == [(1, 1), (0, 21)]


def test_schedule_later_prefill_chunks_are_shorter() -> None:
    plan = Plan(max_num_batched_tokens=64, max_step_pairs=3200)
    plan.add(190)
    sizes = [plan.step()[0][1] for _ in range(4)]
    assert sizes == [50, 28, 22, 19]


def test_queue_is_ordered_by_priority_then_arrival() -> None:
    plan = Plan(max_num_seqs=1, max_num_batched_tokens=64)
    for priority in (1, 0, -3, 0):
        plan.add(5, 1, priority=priority, first=100 * len(plan.sequences))
    assert [plan.step() for _ in range(4)] == [[(2, 5)], [(1, 5)], [(3, 5)], [(0, 5)]]


def test_queue_head_without_room_is_not_skipped() -> None:
    plan = Plan(blocks=13)
    plan.add(190, 5)
    plan.step()
    plan.add(100, 1, first=500)
    plan.add(5, 1, first=900)
    assert plan.step() == [(0, 64)]
    assert plan.scheduler.num_waiting == 2


def test_full_pool_preempts_least_urgent_and_restarts_it() -> None:
    plan = Plan(blocks=13)
    first = plan.add(95, 100)
    second = plan.add(95, 100, first=500)
    steps = [plan.step() for _ in range(3)]
    while not plan.scheduler.num_preemptions:
        steps.append(plan.step())
    assert (first.num_computed_tokens, second.num_computed_tokens) == (first.num_tokens - 1, 0)
    assert second.blocks == []
    assert second.num_tokens > 95
    assert plan.scheduler.num_waiting == 1
    while plan.scheduler.has_work:
        plan.step()
    assert (first.num_tokens, second.num_tokens) == (195, 195)


def test_step_with_preemption_admits_no_sequence() -> None:
    plan = Plan(blocks=13, max_num_seqs=2)
    plan.add(95, 100)
    plan.add(95, 100, first=500)
    for _ in range(4):
        plan.step()
    urgent = plan.add(3, 1, first=900, priority=-1)
    keys: list[int] = []
    while not plan.scheduler.num_preemptions:
        keys = [key for key, _ in plan.step()]
    assert keys == [0]
    assert urgent.key in [key for key, _ in plan.step()]


def test_preemption_spares_urgent_newer_sequence() -> None:
    plan = Plan(blocks=13)
    old = plan.add(95, 100)
    urgent = plan.add(95, 100, first=500, priority=-1)
    while not plan.scheduler.num_preemptions:
        plan.step()
    assert old.blocks == []
    assert urgent.blocks


def test_prefix_cache_shares_full_blocks_except_last_token() -> None:
    plan = Plan()
    plan.add(48)
    plan.step()
    for length, cached in ((48, 32), (49, 48), (47, 32), (10, 0)):
        sequence = plan.add(length)
        plan.step()
        assert sequence.cached_tokens == cached, length


def test_prefix_cache_shares_blocks_within_one_step() -> None:
    plan = Plan()
    sequences = [plan.add(40) for _ in range(3)]
    assert plan.step() == [(0, 40), (1, 8), (2, 8)]
    assert [sequence.cached_tokens for sequence in sequences] == [0, 32, 32]
    assert sequences[0].blocks[:2] == sequences[1].blocks[:2] == sequences[2].blocks[:2]


def test_prefix_cache_separates_salts() -> None:
    plan = Plan()
    sequences = [plan.add(40, salt=salt) for salt in ("", "a", "b", "a")]
    for _ in range(3):
        plan.step()
    assert [sequence.cached_tokens for sequence in sequences] == [0, 0, 0, 32]


def test_prefix_cache_disabled_has_no_hits() -> None:
    plan = Plan(enable_prefix_caching=False)
    plan.add(40)
    again = plan.add(40)
    plan.step()
    plan.step()
    assert again.cached_tokens == 0


def test_prefix_cache_excludes_blocks_of_failed_step() -> None:
    plan = Plan()
    plan.add(40)
    plan.scheduler.schedule()
    assert len(plan.scheduler.reset()) == 1
    assert plan.pool.num_free == plan.pool.size
    again = plan.add(40)
    plan.step()
    assert again.cached_tokens == 0


ARRIVALS = st.lists(
    st.tuples(
        st.integers(1, 150),
        st.integers(1, 50),
        st.sampled_from([0, 0, 7, 500]),
        st.integers(-1, 1),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=12,
)


@given(
    ARRIVALS,
    st.integers(13, 40),
    st.integers(1, 4),
    st.integers(4, 70),
    st.sampled_from([100, 5000]),
    st.data(),
)
def test_random_arrivals_and_aborts_serve_every_sequence(
    arrivals: list[tuple[int, int, int, int, int]],
    blocks: int,
    seqs: int,
    tokens: int,
    pairs: int,
    data: st.DataObject,
) -> None:
    plan = Plan(blocks, max_num_seqs=seqs, max_num_batched_tokens=tokens, max_step_pairs=pairs)
    gone: set[int] = set()
    waiting = list(arrivals)
    steps = 0
    while waiting or plan.scheduler.has_work:
        while waiting and waiting[0][4] <= steps:
            length, answer, first, priority, _ = waiting.pop(0)
            plan.add(length, answer, first=first, priority=priority)
        if plan.sequences and data.draw(st.integers(0, 30)) == 0:
            sequence = data.draw(st.sampled_from(plan.sequences))
            plan.scheduler.remove(sequence)
            gone.add(sequence.key)
        plan.step()
        steps += 1
        assert steps < 5000, "the queue is stuck"
    assert plan.pool.num_free == plan.pool.size
    for sequence in plan.sequences:
        if sequence.key not in gone:
            assert sequence.num_tokens == min(
                sequence.num_prompt_tokens + sequence.request.max_tokens, MOST
            )


@given(ARRIVALS, st.integers(13, 40), st.integers(1, 4), st.integers(4, 70), st.data())
def test_chunked_prefill_carries_recurrent_state_between_chunks(
    arrivals: list[tuple[int, int, int, int, int]],
    blocks: int,
    slots: int,
    tokens: int,
    data: st.DataObject,
) -> None:
    plan = Plan(blocks, slots, max_num_seqs=4, max_num_batched_tokens=tokens, max_step_pairs=5000)
    for length, answer, first, priority, _ in arrivals:
        plan.add(length, answer, first=first, priority=priority)
    while plan.scheduler.has_work:
        action = data.draw(st.sampled_from(["step"] * 20 + ["leave", "restart", "fail"]))
        if action == "leave":
            plan.scheduler.remove(data.draw(st.sampled_from(plan.sequences)))
        elif action == "restart":
            plan.scheduler.restart_all()
        elif action == "fail":
            plan.scheduler.reset()
        plan.step()
        assert all(sequence.cached_tokens == 0 for sequence in plan.sequences)
    assert plan.slots
    assert plan.slots.num_free == slots
    assert plan.pool.num_free == plan.pool.size


def test_queue_head_waits_for_free_slot() -> None:
    plan = Plan(slots=1)
    plan.add(10, 2)
    plan.add(10, 1)
    assert [plan.step() for _ in range(3)] == [[(0, 10)], [(0, 1)], [(1, 10)]]


def test_prefix_cache_is_unused_for_models_with_slots() -> None:
    plan = Plan(slots=4)
    plan.add(64, 1)
    plan.step()
    plan.add(64, 1)
    assert plan.step() == [(1, 64)]
    assert plan.scheduler.count_cached_tokens(plan.sequences[0].request.prompt, "") == 0
