"""For any requests in any order, the invariants of scheduler and blocks hold after
every step.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import RequestError
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.sequence import SequenceStatus

from .checked_scheduler import Driver, sequence

configs = st.builds(
    SimulatedSchedulerConfig,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 24),
    block_size=st.just(4),
    num_gpu_blocks=st.integers(6, 12),
    enable_prefix_caching=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 3, 8]),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    scheduler_reserve_full_isl=st.booleans(),
    watermark=st.sampled_from([0.0, 0.1]),
)
prompts = st.lists(st.just(0), min_size=1, max_size=16) | st.lists(
    st.integers(0, 1), min_size=1, max_size=16
)
requests = st.tuples(prompts, st.integers(1, 16), st.integers(-1, 1))
pauses = st.integers(0, 3)
Scenario = list[tuple[tuple[list[int], int, int], int, bool]]
scenarios = st.lists(
    st.tuples(requests, pauses, st.sampled_from([False, False, True])), min_size=2, max_size=12
)


parts = st.lists(st.sampled_from(["here", "fetched", "lost", "kept"]), min_size=12, max_size=12)


def drive(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario, parts: Sequence[str] = ()
) -> Driver:
    """Run requests with some steps between them; some are aborted.

    parts: for each request, the role of another instance: it sends or loses the
        prompt's blocks, or fetches blocks.
    """
    driver = Driver(config, depth)
    driver.lost = frozenset(f"q{number}" for number, part in enumerate(parts) if part == "lost")
    doomed = None
    for number, ((prompt, max_tokens, priority), pause, dies) in enumerate(scenario):
        added = sequence(f"q{number}", prompt, max_tokens, priority=priority, arrival=float(number))
        part = parts[number] if parts else "here"
        added.num_remote_tokens = len(prompt) if part in ("fetched", "lost") else 0
        added.keeps_blocks = part == "kept"
        try:
            driver.add(added)
        except RequestError:
            continue
        for _ in range(pause):
            driver.step()
        if doomed is not None:
            driver.abort(doomed)
        doomed = added if dies else None
    driver.run()
    return driver


@given(configs, st.sampled_from([1, 2]), scenarios)
def test_random_run_delivers_all_tokens_and_frees_blocks(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario
) -> None:
    driver = drive(config, depth, scenario)
    assert driver.pool.num_free == driver.pool.size
    for each in driver.sequences:
        assert each.status is SequenceStatus.FINISHED
        if each.id in driver.finished:
            assert driver.got[each.id] == each.max_tokens == each.num_output_tokens
        else:
            assert driver.got[each.id] < each.max_tokens, "only aborted sequences end early"
    assert len(driver.finished) == len(set(driver.finished))


@given(configs, st.sampled_from([1, 2]), scenarios, parts)
def test_random_run_with_remote_parts_frees_blocks(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario, parts: list[str]
) -> None:
    driver = drive(config, depth, scenario, parts)
    assert driver.pool.num_free == driver.pool.size
    for each in driver.sequences:
        assert each.status is SequenceStatus.FINISHED
        assert (each.id in driver.finished) == (driver.got[each.id] == each.max_tokens)
    assert len(driver.finished) == len(set(driver.finished))


@given(configs, st.sampled_from([1, 2]), scenarios)
def test_tokens_are_computed_once_without_preemption(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario
) -> None:
    driver = drive(config, depth, scenario)
    for each in driver.sequences:
        if each.id not in driver.finished:
            continue
        whole = each.num_prompt_tokens + each.max_tokens - 1
        if each.num_preemptions == 0:
            assert driver.computed[each.id] == whole - (each.num_cached_tokens or 0)
        else:
            # Blocks that were cached at the first admission may be evicted before the
            # next.
            assert driver.computed[each.id] <= whole * (1 + each.num_preemptions)


@given(configs, st.sampled_from([1, 2]), scenarios)
def test_fcfs_policy_admits_in_arrival_order(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario
) -> None:
    driver = drive(config, depth, scenario)
    if config.scheduling_policy == "fcfs":
        order = [each.id for each in driver.sequences if each.id in driver.admitted]
        assert driver.admitted == order


@given(configs, st.sampled_from([1, 2]), scenarios)
def test_equal_scenarios_give_equal_runs(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario
) -> None:
    first = drive(config, depth, scenario)
    second = drive(config, depth, scenario)
    assert first.finished == second.finished
    assert first.got == second.got
    assert first.index == second.index


@given(configs, st.sampled_from([1, 2]), scenarios)
def test_cache_hit_and_preemption_stats_match_sequences(
    config: SimulatedSchedulerConfig, depth: int, scenario: Scenario
) -> None:
    driver = drive(config, depth, scenario)
    stats = driver.scheduler.stats
    served = [each for each in driver.sequences if each.num_cached_tokens is not None]
    assert stats.prefix_cache_hits == sum(each.num_cached_tokens or 0 for each in served)
    assert stats.prefix_cache_queries == sum(each.num_prompt_tokens for each in served)
    assert stats.num_preemptions == sum(each.num_preemptions for each in driver.sequences)
