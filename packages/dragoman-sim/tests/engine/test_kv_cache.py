"""Several block tables per sequence: what they hold, find and free."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import KvCacheGroup, SimulatedSchedulerConfig

from .checked_scheduler import sample, sequence

FULL = KvCacheGroup()
WINDOW = KvCacheGroup("sliding_window", 8)
CHUNK = KvCacheGroup("chunked_local", 8)
STATE = KvCacheGroup("state")


def build(*groups: KvCacheGroup, **fields: object) -> SimulatedScheduler:
    usual: dict[str, object] = {
        "block_size": 4,
        "num_gpu_blocks": 60,
        "max_num_batched_tokens": 16,
        "async_scheduling": False,
        "kv_cache_groups": groups,
    }
    return SimulatedScheduler(SimulatedSchedulerConfig(**{**usual, **fields}))  # pyright: ignore[reportArgumentType]


def run(scheduler: SimulatedScheduler) -> list[tuple[list[int], int, int]]:
    """Run until all requests have ended; return each step's load and the pool."""
    log = list[tuple[list[int], int, int]]()
    while scheduler.num_running or scheduler.num_waiting:
        step = scheduler.schedule()
        counts = [chunk.num_tokens for chunk in step.chunks] + [1] * len(step.decodes)
        log.append((counts, scheduler.pool.num_used, scheduler.pool.num_cached))
        sampled, finished = scheduler.update(step)
        for each in sampled:
            sample(each)
        for each in finished:
            scheduler.finish(each)
        assert len(log) < 500
    return log


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_one_full_group_equals_single_table(seed: int, is_async: bool, caches: bool) -> None:
    logs = list[object]()
    for groups in ((), (FULL,)):
        random = Random(seed)
        fields = {"async_scheduling": is_async, "enable_prefix_caching": caches}
        scheduler = build(*groups, **fields, num_gpu_blocks=random.randint(12, 40))
        for number in range(8):
            prompt = [1] * random.randint(1, 20) + [number] * random.randint(0, 12)
            scheduler.add(sequence(str(number), prompt, random.randint(1, 12)))
        logs.append(run(scheduler))
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("group", "held"),
    [
        # 42 tokens in blocks of 4: the last one attends to 7 others, or to the one
        # before it in its chunk, or it needs the state before it.
        (FULL, 11),
        (WINDOW, 3),
        (CHUNK, 1),
        (STATE, 1),
    ],
)
def test_group_table_holds_blocks_of_last_window(group: KvCacheGroup, held: int) -> None:
    groups = (FULL,) if group == FULL else (FULL, group)
    scheduler = build(*groups, max_num_batched_tokens=8)
    scheduler.add(request := sequence("a", list(range(40)), 4))
    while request.num_computed_tokens < 42:
        for each in scheduler.update(scheduler.schedule())[0]:
            sample(each)
    table = request.tables[-1]
    assert sum(block != 0 for block in table.blocks) == held
    assert len(table.blocks) == 11


@pytest.mark.parametrize("group", [WINDOW, CHUNK, STATE])
def test_repeated_prompt_hits_in_every_group(group: KvCacheGroup) -> None:
    scheduler = build(FULL, group)
    for id in ("a", "b"):
        scheduler.add(request := sequence(id, list(range(30)), 2))
        run(scheduler)
    assert request.num_cached_tokens == 28


def test_hit_ends_at_shortest_hit_of_groups() -> None:
    # A window keeps only what a repeated prompt needs, the end of the first one.
    scheduler = build(FULL, WINDOW, prefix_cache_retention_interval=0)
    scheduler.add(sequence("a", list(range(40)), 1))
    run(scheduler)
    fork = sequence("b", [*range(24), *range(100, 116)], 1)
    scheduler.add(fork)
    run(scheduler)
    assert fork.num_cached_tokens == 0
    # The prefix that both share is kept from now on.
    again = sequence("c", [*range(24), *range(200, 216)], 1)
    scheduler.add(again)
    run(scheduler)
    assert again.num_cached_tokens == 24


def test_dense_retention_keeps_every_prefix() -> None:
    scheduler = build(FULL, WINDOW, prefix_cache_retention_interval=None, num_gpu_blocks=200)
    scheduler.add(sequence("a", list(range(40)), 1))
    run(scheduler)
    fork = sequence("b", [*range(24), *range(100, 116)], 1)
    scheduler.add(fork)
    run(scheduler)
    assert fork.num_cached_tokens == 24


def test_hits_are_aligned_to_largest_block() -> None:
    scheduler = build(
        FULL,
        KvCacheGroup("sliding_window", 8, block_size=8),
        prefix_cache_retention_interval=None,
        num_gpu_blocks=200,
    )
    for id in ("a", "b"):
        scheduler.add(request := sequence(id, list(range(31)), 1))
        run(scheduler)
    assert request.num_cached_tokens == 24


def test_max_context_counts_blocks_of_all_groups() -> None:
    full, both = (
        SimulatedSchedulerConfig(
            block_size=4, num_gpu_blocks=101, max_num_batched_tokens=8, kv_cache_groups=groups
        )
        for groups in ((FULL,), (FULL, KvCacheGroup("sliding_window", 8, 3)))
    )
    assert full.max_context == 400
    # Each of three windows holds 7 + 2 * 8 tokens, so at most 7 blocks.
    assert both.max_context == 4 * (100 - 3 * 7)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv_cache_groups": (WINDOW, CHUNK)}, "need one of kind full_attention"),
        ({"kv_cache_groups": (FULL, WINDOW, WINDOW)}, "one group with more tables"),
        ({"kv_cache_groups": (FULL, STATE), "num_speculative_tokens": 1}, "speculative decoding"),
        (
            {"kv_cache_groups": (KvCacheGroup(block_size=32), WINDOW)},
            "kind full_attention with a block_size of its own",
        ),
        (
            {"kv_cache_groups": (FULL, WINDOW), "prefix_cache_retention_interval": 10},
            "a multiple of their blocks' 16 tokens",
        ),
    ],
)
def test_config_with_unsimulated_groups_is_rejected(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SimulatedSchedulerConfig(**fields)  # pyright: ignore[reportArgumentType]
