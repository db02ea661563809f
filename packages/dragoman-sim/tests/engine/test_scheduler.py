from __future__ import annotations

import pytest

from dragoman.core.errors import ContextTooLong, RequestError
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.scheduler_output import SchedulerOutput
from dragoman_sim.engine.sequence import SequenceStatus, SimulatedSequence

from .checked_scheduler import known_tokens, sample, sequence


def scheduler(**settings: object) -> SimulatedScheduler:
    usual: dict[str, object] = {"max_num_batched_tokens": 16, "block_size": 4, "num_gpu_blocks": 17}
    return SimulatedScheduler(SimulatedSchedulerConfig(**{**usual, **settings}))  # pyright: ignore[reportArgumentType]


def prompt(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def shares(step: SchedulerOutput) -> dict[str, int]:
    """Return the number of tokens that each sequence computes."""
    return {each.id: 1 for each in step.decodes} | {
        chunk.sequence.id: chunk.num_tokens for chunk in step.chunks
    }


def add_all(to: SimulatedScheduler, *sequences: SimulatedSequence) -> None:
    for each in sequences:
        to.add(each)


def step(of: SimulatedScheduler) -> dict[str, int]:
    """Begin and end one step."""
    scheduled = of.schedule()
    sampled, finished = of.update(scheduled)
    for each in sampled:
        sample(each)
    for each in finished:
        of.finish(each)
    return shares(scheduled)


def test_prompt_over_budget_is_prefilled_in_chunks() -> None:
    tested = scheduler()
    add_all(tested, sequence("long", prompt(40), 2), sequence("short", prompt(4, 100), 2))
    assert [step(tested) for _ in range(4)] == [
        {"long": 16},
        {"long": 16},
        {"long": 8, "short": 4},
        {"long": 1, "short": 1},
    ]


def test_prompt_over_budget_without_chunked_prefill_is_rejected() -> None:
    tested = scheduler(enable_chunked_prefill=False)
    with pytest.raises(ContextTooLong):
        tested.add(sequence("long", prompt(17), 1))
    add_all(tested, sequence("a", prompt(10), 2), sequence("b", prompt(10, 50), 2))
    assert [step(tested), step(tested)] == [{"a": 10}, {"a": 1, "b": 10}]


@pytest.mark.parametrize(("length", "max_tokens"), [(0, 1), (1, 0), (1, -1), (64, 1), (60, 5)])
def test_add_request_over_capacity_is_rejected(length: int, max_tokens: int) -> None:
    tested = scheduler()
    with pytest.raises(RequestError):
        tested.add(sequence("q", prompt(length), max_tokens))
    assert tested.num_waiting == 0


def test_request_at_exact_capacity_completes() -> None:
    tested = scheduler()
    tested.add(sequence("q", prompt(60), 4))
    for _ in range(7):
        step(tested)
    assert (tested.num_running, tested.pool.num_used) == (0, 0)


def test_long_prefill_threshold_leaves_room_for_others() -> None:
    tested = scheduler(long_prefill_token_threshold=6)
    add_all(tested, sequence("long", prompt(20), 1), sequence("short", prompt(4, 100), 1))
    tested.add(sequence("next", prompt(5, 200), 1))
    assert step(tested) == {"long": 6, "short": 4, "next": 5}
    assert step(tested) == {"long": 14}, "no sequence is left that needs the memory"


def test_long_prefill_alone_uses_full_budget() -> None:
    tested = scheduler(long_prefill_token_threshold=6)
    tested.add(sequence("long", prompt(20), 1))
    assert step(tested) == {"long": 16}
    add_all(tested, sequence("a", prompt(1, 100), 1), sequence("b", prompt(1, 200), 1))
    assert step(tested) == {"long": 4, "a": 1, "b": 1}


def test_adaptive_threshold_is_at_least_fair_share() -> None:
    tested = scheduler(long_prefill_token_threshold=3, long_prefill_token_threshold_adaptive=True)
    add_all(tested, sequence("long", prompt(20), 1), sequence("short", prompt(4, 100), 1))
    assert step(tested) == {"long": 8, "short": 4}


def test_max_num_seqs_limits_running_sequences() -> None:
    tested = scheduler(max_num_seqs=1)
    add_all(tested, sequence("a", prompt(4), 1), sequence("b", prompt(4), 1))
    assert [step(tested), step(tested), step(tested)] == [{"a": 4}, {"b": 4}, {}]


def test_full_cache_queues_requests_in_order() -> None:
    tested = scheduler(num_gpu_blocks=5)
    add_all(
        tested,
        sequence("a", prompt(8), 3),
        sequence("b", prompt(12, 50), 1),
        sequence("c", prompt(1, 90), 1),
    )
    assert step(tested) == {"a": 8}
    assert step(tested) == {"a": 1}
    assert [each.id for each in tested.list_waiting()] == ["b", "c"]


def test_reserve_full_isl_reserves_whole_prompt() -> None:
    for reserve, expected in ((True, {"a": 12}), (False, {"a": 12, "b": 4})):
        tested = scheduler(num_gpu_blocks=6, scheduler_reserve_full_isl=reserve)
        add_all(tested, sequence("a", prompt(12), 1), sequence("b", prompt(12, 50), 1))
        assert shares(tested.schedule()) == expected


def test_preemption_takes_newest_and_requeues_it_first() -> None:
    tested = scheduler(num_gpu_blocks=5)
    a = sequence("a", prompt(7), 5)
    b = sequence("b", prompt(7, 50), 5)
    c = sequence("c", prompt(1, 90), 1)
    add_all(tested, a, b, c)
    assert step(tested) == {"a": 7, "b": 7}
    assert step(tested) == {"a": 1, "b": 1}
    scheduled = tested.schedule()
    assert (shares(scheduled), scheduled.preempted) == ({"a": 1}, [b])
    assert [each.id for each in tested.list_waiting()] == ["b", "c"]
    assert (b.status, b.num_preemptions, b.num_computed_tokens) == (SequenceStatus.PREEMPTED, 1, 0)


def test_preempted_sequence_reuses_its_cached_blocks() -> None:
    tested = scheduler(num_gpu_blocks=6)
    a = sequence("a", prompt(7), 3)
    b = sequence("b", prompt(8, 50), 4)
    add_all(tested, a, b)
    assert [step(tested) for _ in range(4)] == [
        {"a": 7, "b": 8},
        {"a": 1, "b": 1},
        {"a": 1},
        {"b": 2},
    ]
    assert (b.num_preemptions, b.num_output_tokens) == (1, 3)


def test_priority_policy_preempts_least_urgent() -> None:
    tested = scheduler(num_gpu_blocks=5, scheduling_policy="priority")
    a = sequence("a", prompt(7), 5, priority=2)
    b = sequence("b", prompt(7, 50), 5, priority=1)
    add_all(tested, a, b)
    step(tested)
    step(tested)
    scheduled = tested.schedule()
    assert (shares(scheduled), scheduled.preempted) == ({"b": 1}, [a])


def test_sequence_preempted_after_scheduling_leaves_step() -> None:
    tested = scheduler(num_gpu_blocks=5, scheduling_policy="priority")
    a = sequence("a", prompt(6), 6, priority=2)
    b = sequence("b", prompt(7, 50), 5, priority=1)
    add_all(tested, a, b)
    assert [step(tested), step(tested)] == [{"a": 6, "b": 7}, {"a": 1, "b": 1}]
    scheduled = tested.schedule()
    assert (shares(scheduled), scheduled.preempted) == ({"b": 1}, [a])
    assert (scheduled.load.tokens, scheduled.load.sequences) == (1, 1)
    assert a.num_tokens == 8, "six of its prompt and two of its answer"


def test_self_preemption_does_not_block_later_sequences() -> None:
    tested = scheduler(num_gpu_blocks=5, scheduling_policy="priority")
    low = sequence("low", prompt(7), 5, priority=2)
    high = sequence("high", prompt(7, 50), 5, priority=1)
    tested.add(low)
    assert step(tested) == {"low": 7}
    tested.add(high)
    assert [step(tested), step(tested)] == [{"low": 1, "high": 7}, {"high": 1}]
    assert (low.num_preemptions, high.num_preemptions) == (1, 0)


def test_adapter_over_max_loras_waits_while_others_run() -> None:
    tested = scheduler(max_loras=1)
    first = sequence("first", prompt(4), 2, lora="a")
    other = sequence("other", prompt(4, 50), 1, lora="b")
    again = sequence("again", prompt(4, 100), 1, lora="a")
    plain = sequence("plain", prompt(4, 150), 1)
    add_all(tested, first, other, again, plain)
    assert step(tested) == {"first": 4, "again": 4, "plain": 4}
    assert [each.id for each in tested.list_waiting()] == ["other"]
    assert [step(tested), step(tested)] == [{"first": 1}, {"other": 4}]


def test_skipped_sequences_keep_queue_order() -> None:
    for policy in ("fcfs", "priority"):
        tested = scheduler(max_loras=1, max_num_seqs=2, scheduling_policy=policy)
        tested.add(sequence("first", prompt(1), 9, lora="a"))
        for index, lora in enumerate(("b", "c", "a", "d", "a")):
            tested.add(sequence(f"{index}{lora}", prompt(1), 9, arrival=1.0 + index, lora=lora))
        assert step(tested) == {"first": 1, "2a": 1}
        assert [each.id for each in tested.list_waiting()] == ["0b", "1c", "3d", "4a"]


def test_max_loras_limits_running_adapters() -> None:
    tested = scheduler(max_loras=2)
    for lora in "abc":
        tested.add(sequence(lora, prompt(4), 2, lora=lora))
    assert step(tested) == {"a": 4, "b": 4}


def test_priority_policy_orders_by_priority_then_arrival() -> None:
    tested = scheduler(scheduling_policy="priority")
    for id, priority, arrival in (
        ("late", 0, 2.0),
        ("early", 0, 1.0),
        ("low", 5, 0.0),
        ("high", -1, 3.0),
    ):
        tested.add(sequence(id, prompt(1), 1, priority=priority, arrival=arrival))
    assert [each.id for each in tested.list_waiting()] == ["high", "early", "late", "low"]


def test_prefix_cache_shares_prompt_within_one_step() -> None:
    tested = scheduler()
    a = sequence("a", prompt(10), 1)
    b = sequence("b", prompt(10), 1)
    add_all(tested, a, b)
    assert step(tested) == {"a": 10, "b": 2}
    assert (a.num_cached_tokens, b.num_cached_tokens) == (0, 8)
    assert (tested.stats.prefix_cache_queries, tested.stats.prefix_cache_hits) == (20, 8)


def test_prefix_cache_includes_every_prefill_chunk() -> None:
    tested = scheduler()
    tested.add(sequence("a", prompt(30), 1))
    assert [step(tested), step(tested)] == [{"a": 16}, {"a": 14}]
    tested.add(sequence("b", prompt(30), 1))
    assert step(tested) == {"b": 2}


def test_sync_scheduling_caches_decoded_block_in_same_step() -> None:
    tested = scheduler(async_scheduling=False)
    decoding = sequence("a", prompt(3), 4)
    tested.add(decoding)
    assert step(tested) == {"a": 3}
    tested.add(sequence("b", [*prompt(3), known_tokens(decoding)[3], 9], 1))
    assert step(tested) == {"a": 1, "b": 1}


@pytest.mark.parametrize(("max_tokens", "next_step"), [(3, {"a": 1}), (2, {})])
def test_async_scheduling_caches_block_once_tokens_are_known(
    max_tokens: int, next_step: dict[str, int]
) -> None:
    tested = scheduler()
    tested.add(decoding := sequence("a", prompt(3), max_tokens))
    first = tested.schedule()
    filling = tested.schedule()
    assert shares(filling) == {"a": 1}
    tested.update(first)
    sample(decoding)
    assert tested.pool.list_cached_blocks() == {}
    assert shares(tested.schedule()) == next_step
    assert len(tested.pool.list_cached_blocks()) == len(next_step), (
        "in the next step, if there is one"
    )
    tested.update(filling)
    assert len(tested.pool.list_cached_blocks()) == 1


def test_update_returns_finished_in_step_order() -> None:
    tested = scheduler(long_prefill_token_threshold=4, enable_prefix_caching=False)
    slow = sequence("slow", prompt(8), 1)
    fast = sequence("fast", prompt(4, 50), 2)
    last = sequence("x", prompt(12), 9)
    add_all(tested, slow, fast, last)
    assert step(tested) == {"slow": 4, "fast": 4, "x": 4}
    scheduled = tested.schedule()
    assert shares(scheduled) == {"slow": 4, "fast": 1, "x": 4}
    sampled, finished = tested.update(scheduled)
    assert sampled == finished == [slow, fast]
    held = [list(each.blocks) for each in finished]
    for each in finished:
        tested.finish(each)
    assert tested.pool.allocate(4) == [*reversed(held[1]), *reversed(held[0])], (
        "the last one freed is reused first"
    )


def test_fully_cached_prompt_computes_last_block() -> None:
    tested = scheduler()
    tested.add(sequence("a", prompt(8), 1))
    step(tested)
    tested.add(sequence("b", prompt(8), 1))
    assert step(tested) == {"b": 4}


def test_prefix_caching_disabled_shares_no_blocks() -> None:
    tested = scheduler(enable_prefix_caching=False)
    add_all(tested, sequence("a", prompt(8), 1), sequence("b", prompt(8), 1))
    assert step(tested) == {"a": 8, "b": 8}


def test_finish_frees_running_waiting_and_in_flight_sequence() -> None:
    tested = scheduler(max_num_seqs=1)
    running = sequence("a", prompt(8), 4)
    waiting = sequence("b", prompt(8, 50), 4)
    add_all(tested, running, waiting)
    flying = tested.schedule()
    for each in (running, waiting, running):
        tested.finish(each)
    assert (tested.num_running, tested.num_waiting, tested.pool.num_used) == (0, 0, 0)
    assert tested.update(flying) == ([], []), "the step in flight gives it no token"


def test_async_steps_stop_at_max_tokens() -> None:
    tested = scheduler()
    tested.add(sequence("a", prompt(4), 2))
    first = tested.schedule()
    second = tested.schedule()
    third = tested.schedule()
    assert [shares(each) for each in (first, second, third)] == [{"a": 4}, {"a": 1}, {}]
    assert [len(tested.update(each)[1]) for each in (first, second)] == [0, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 0},
        {"block_size": 0},
        {"num_gpu_blocks": 1},
        {"watermark": 1.0},
        {"max_model_len": 0},
        {"long_prefill_token_threshold": -1},
        {"enable_chunked_prefill": False, "max_model_len": 4096},
    ],
)
def test_invalid_settings_raise(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must"):
        scheduler(**wrong)


@pytest.mark.parametrize(("tokens", "is_held"), [(1, False), (2, True)])
def test_keeps_blocks_applies_only_to_completed_request(tokens: int, is_held: bool) -> None:
    scheduler = SimulatedScheduler(
        SimulatedSchedulerConfig(num_gpu_blocks=10, enable_prefix_caching=False)
    )
    producer = sequence("producer", [1] * 20, 2)
    producer.keeps_blocks = True
    scheduler.add(producer)
    for _ in range(tokens):
        sampled, _ = scheduler.update(scheduler.schedule())
        assert sampled == [producer]
        sample(producer)
    scheduler.finish(producer)
    assert (scheduler.pool.num_free < scheduler.pool.size) is is_held
    scheduler.release(producer)
    assert scheduler.pool.num_free == scheduler.pool.size
