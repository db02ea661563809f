"""Disaggregated prefill and decode: blocks are held and freed, transfers share a link,
no request starves.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.engine.block_leases import BlockLeases
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.network_link import NetworkLink, TransferCost
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.engine.sequence import SequenceStatus, SimulatedSequence
from dragoman_sim.engine.transfer_params import KvAddress, KvTransferParams, build_transfer_params
from dragoman_sim.lab.disaggregated_replay import DisaggregationConfig, replay_disaggregated
from dragoman_sim.lab.replay_result import ReplayResult
from dragoman_sim.lab.replica_router import ReplicaRouter

from .checked_scheduler import sequence

CONFIG = SimulatedSchedulerConfig(num_gpu_blocks=20, block_size=4, async_scheduling=False)
COST = TransferCost(bytes_per_token=10.0, bandwidth=100.0, base_seconds=0.5)


def cores(
    count: int, seconds: float = 1.0, config: SimulatedSchedulerConfig = CONFIG
) -> list[EngineCore]:
    return [EngineCore(SimulatedScheduler(config), lambda _: seconds) for _ in range(count)]


def run_split(
    workload: list[WorkloadRequest], engines: list[EngineCore], split: DisaggregationConfig
) -> ReplayResult:
    return replay_disaggregated(
        workload, engines, split, routers=(ReplicaRouter(), ReplicaRouter())
    )


def remote(id: str, tokens: int = 8, max_tokens: int = 3) -> SimulatedSequence:
    remote_sequence = sequence(id, list(range(tokens)), max_tokens)
    remote_sequence.num_remote_tokens = tokens
    return remote_sequence


# Held blocks.


def hold_blocks(scheduler: SimulatedScheduler) -> SimulatedSequence:
    ended = sequence("a", [1] * 8, 1)
    ended.keeps_blocks = True
    scheduler.add(ended)
    sampled, finished = scheduler.update(scheduler.schedule())
    assert sampled == finished == [ended]
    scheduler.finish(ended)
    return ended


def test_prefilled_blocks_are_held_until_release() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    ended = hold_blocks(scheduler)
    assert (ended.status, scheduler.num_running, scheduler.pool.num_used) == (
        SequenceStatus.FINISHED,
        0,
        2,
    )
    scheduler.release(ended)
    scheduler.release(ended)
    assert scheduler.pool.num_used == 0


def test_adapter_wait_then_fetch_counts_one_deferral() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    running = sequence("a", [1] * 8, 1)
    waiting = remote("b")
    running.lora = "x"
    waiting.lora = "y"
    scheduler.add(running)
    scheduler.add(waiting)
    step = scheduler.schedule()
    assert (scheduler.num_waiting, scheduler.num_deferred) == (1, 1)
    scheduler.update(step)
    scheduler.finish(running)
    assert [fetch.sequence for fetch in scheduler.schedule().fetching] == [waiting]
    assert (scheduler.num_waiting, scheduler.num_deferred) == (1, 1)
    scheduler.complete_fetch(waiting)
    scheduler.schedule()
    assert (scheduler.num_waiting, scheduler.num_deferred) == (0, 0)


def test_abort_releases_kept_blocks() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    aborted = sequence("a", [1] * 8, 1)
    aborted.keeps_blocks = True
    scheduler.add(aborted)
    scheduler.schedule()
    scheduler.finish(aborted)
    assert scheduler.pool.num_used == 0


def test_lease_expires_unless_fetch_started() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    leases = BlockLeases(scheduler, seconds=10.0)
    leases.add(hold_blocks(scheduler), 5.0)
    assert (leases.next_expiry, leases.expire(14.9), len(leases)) == (15.0, [], 1)
    assert leases.expire(15.0) == ["a"]
    assert scheduler.pool.num_used == 0
    assert not leases.begin_fetch("a"), "too late"

    leases.add(hold_blocks(scheduler), 20.0)
    assert leases.begin_fetch("a")
    assert (leases.next_expiry, leases.expire(99.0), scheduler.pool.num_used) == (None, [], 2)
    leases.release("a")
    leases.release("a")
    assert (scheduler.pool.num_used, len(leases)) == (0, 0)


def test_build_transfer_params_matches_vllm_format() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    ended = hold_blocks(scheduler)
    params = build_transfer_params(ended, KvAddress("engine-1", "10.0.0.1", 5601, tp_size=2))
    assert msgspec.to_builtins(params) == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [ended.blocks],
        "remote_engine_id": "engine-1",
        "remote_request_id": "a",
        "remote_host": "10.0.0.1",
        "remote_port": 5601,
        "tp_size": 2,
        "remote_num_tokens": 8,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_blocks_expiry_time": None,
        "remote_registration_generation": 0,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }


@pytest.mark.parametrize("ids", ["[[1, 2]]", "[1, 2]", "null"])
def test_transfer_params_decode_accepts_all_vllm_versions(ids: str) -> None:
    body = (
        f'{{"do_remote_decode": true, "remote_block_ids": {ids}, "remote_host": null, '
        f'"transfer_id": "x"}}'
    )
    assert msgspec.json.decode(body, type=KvTransferParams).do_remote_decode


# Fetched blocks.


def test_remote_prompt_computes_only_last_token_after_fetch() -> None:
    core = EngineCore(
        SimulatedScheduler(msgspec.structs.replace(CONFIG, max_num_seqs=1)), lambda _: 1.0
    )
    far = remote("far")
    near = sequence("near", [5] * 4, 1)
    core.add(far)
    core.add(near)
    outcome = core.step(0.0)
    assert [(fetch.sequence, fetch.num_tokens) for fetch in outcome.fetching] == [(far, 8)]
    assert outcome.admitted == [near], "a sequence that fetches does not block others"
    assert (far.status, len(far.blocks), core.scheduler.num_waiting) == (
        SequenceStatus.FETCHING,
        2,
        1,
    )
    core.scheduler.complete_fetch(far)
    assert (far.num_computed_tokens, far.num_cached_tokens) == (7, 7)
    assert core.step(1.0).admitted == [far]
    ended = core.step(2.0)
    assert (ended.sampled, ended.load and ended.load.tokens) == ([far], 1)


def test_fetch_excludes_cached_tokens() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    scheduler.add(near := sequence("a", list(range(8)), 1))
    scheduler.update(scheduler.schedule())
    scheduler.finish(near)
    scheduler.add(remote("b", 16))
    assert [fetch.num_tokens for fetch in scheduler.schedule().fetching] == [8]
    scheduler.add(remote("c", 9))
    step = scheduler.schedule()
    assert [fetch.num_tokens for fetch in step.fetching] == [1]


def test_fetched_prompt_is_found_in_prefix_cache() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    scheduler.add(first := remote("a"))
    scheduler.schedule()
    assert scheduler.count_cached_tokens(sequence("b", list(range(9)), 1)) == 0
    scheduler.complete_fetch(first)
    # The last token is computed here.
    assert scheduler.count_cached_tokens(sequence("b", list(range(9)), 1)) == CONFIG.block_size


def test_failed_fetch_is_recomputed_locally() -> None:
    scheduler = SimulatedScheduler(CONFIG)
    scheduler.add(lost := remote("a"))
    scheduler.add(other := sequence("b", [1], 1))
    scheduler.schedule()
    scheduler.fail_fetch(lost)
    assert scheduler.pool.num_used == 1
    step = scheduler.schedule()
    assert step.chunks[-1].num_tokens == 8
    assert lost.status is other.status is SequenceStatus.RUNNING


@pytest.mark.parametrize("fetched", [False, True])
def test_abort_during_fetch_frees_blocks(fetched: bool) -> None:
    scheduler = SimulatedScheduler(CONFIG)
    scheduler.add(aborted := remote("a"))
    scheduler.schedule()
    if fetched:
        scheduler.complete_fetch(aborted)
    scheduler.finish(aborted)
    assert (scheduler.pool.num_used, scheduler.num_waiting) == (0, 0)


def test_fetched_sequence_is_admitted_before_blocked_queue_head() -> None:
    """Otherwise both would wait forever: the first in the queue for blocks, the other
    for the first one.
    """
    scheduler = SimulatedScheduler(CONFIG)
    scheduler.add(far := remote("far", 40))
    scheduler.schedule()
    scheduler.add(big := sequence("big", [7] * 60, 1))
    assert scheduler.schedule().num_tokens == 0
    scheduler.complete_fetch(far)
    assert scheduler.schedule().admitted == [far]
    assert big.status is SequenceStatus.WAITING


# Links.


def test_transfer_time_is_base_plus_bytes_over_bandwidth() -> None:
    link = NetworkLink(COST)
    link.begin("a", 20, now=3.0)
    assert link.next_completion == pytest.approx(5.5)
    assert link.pop_completed(5.4) == []
    assert link.pop_completed(5.5) == ["a"]
    assert (link.next_completion, len(link)) == (None, 0)


def test_concurrent_transfers_share_bandwidth() -> None:
    link = NetworkLink(TransferCost(10.0, 100.0, 0.0))
    link.begin("long", 20, now=0.0)
    link.begin("short", 10, now=1.0)
    assert link.next_completion == pytest.approx(3.0), (
        "half of the long transfer was complete; both need 100 bytes, at 50 per second"
    )
    link.cancel("long", 2.0)
    assert link.next_completion == pytest.approx(2.5)
    assert link.pop_completed(9.0) == ["short"]


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0, 5)), min_size=1, max_size=8))
def test_network_link_completes_all_within_bandwidth(
    requests: list[tuple[int, float]],
) -> None:
    link = NetworkLink(TransferCost(10.0, 100.0, 0.0))
    now = 0.0
    ended = list[str]()
    for number, (tokens, pause) in enumerate(requests):
        now += pause
        ended += link.pop_completed(now)
        link.begin(str(number), tokens, now)
    while (due := link.next_completion) is not None:
        assert due >= now - 1e-9
        now = max(now, due)
        ended += link.pop_completed(now)
    assert sorted(ended) == sorted(str(number) for number in range(len(requests)))
    assert now >= sum(tokens for tokens, _ in requests) / 10 - 1e-6


@pytest.mark.parametrize(
    "wrong", [{"bandwidth": 0.0}, {"base_seconds": -1.0}, {"bytes_per_token": 0.0}]
)
def test_transfer_cost_with_invalid_values_raises(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must"):
        TransferCost(**{"bytes_per_token": 1.0, **wrong})


# Fleets.


@pytest.mark.parametrize("protocol", ["kv_transfer_params", "plain"])
def test_first_token_follows_prefill_transfer_and_one_step(protocol: str) -> None:
    split = msgspec.convert(
        {"prefill": 1, "cost": COST, "protocol": protocol}, DisaggregationConfig
    )
    (timing,) = run_split([WorkloadRequest("a", 0.0, 20, 3)], cores(2), split).timings
    assert (timing.first_token_s, timing.last_token_s) == (1.0 + 2.5 + 1.0, 6.5)
    assert (timing.kv_transfer_s, timing.prefill_replica, timing.replica) == (2.5, 0, 1)


def test_transfers_queue_only_on_shared_link() -> None:
    workload = [WorkloadRequest(f"r{index}", 0.0, 20, 1) for index in range(2)]
    for links, first, second in (("shared", 4.5, 4.5), ("pairs", 2.5, 2.5)):
        split = msgspec.convert({"prefill": 1, "cost": COST, "links": links}, DisaggregationConfig)
        timings = run_split(workload, cores(3), split).timings
        assert [timing.kv_transfer_s for timing in timings] == [first, second]


def test_expired_lease_causes_second_prefill() -> None:
    split = DisaggregationConfig(prefill=1, cost=COST, lease_seconds=2.0)
    config = msgspec.structs.replace(CONFIG, num_gpu_blocks=8)
    workload = [WorkloadRequest("first", 0.0, 20, 5), WorkloadRequest("late", 0.0, 20, 5)]
    engines = cores(2, config=config)
    timings = run_split(workload, engines, split).timings
    assert timings[0].kv_transfer_s > 0
    assert timings[1].kv_transfer_s == 0, (
        "its blocks expired before the decode side had memory for it"
    )
    assert all(engine.scheduler.pool.num_used == 0 for engine in engines)


fleets = st.builds(
    DisaggregationConfig,
    prefill=st.integers(1, 2),
    cost=st.builds(
        TransferCost,
        st.just(1.0),
        st.sampled_from([1.0, 10.0, 1000.0]),
        st.sampled_from([0.0, 0.5]),
    ),
    links=st.sampled_from(["shared", "pairs"]),
    protocol=st.sampled_from(["kv_transfer_params", "plain"]),
    lease_seconds=st.sampled_from([0.5, 3.0, 480.0]),
)
configs = st.builds(
    SimulatedSchedulerConfig,
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.integers(4, 40),
    block_size=st.just(4),
    num_gpu_blocks=st.integers(9, 14),
    enable_prefix_caching=st.booleans(),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    async_scheduling=st.booleans(),
)
workloads = st.lists(
    st.tuples(
        st.integers(1, 20), st.integers(1, 12), st.floats(0, 3), st.integers(0, 1), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@given(configs, fleets, workloads)
def test_random_workload_completes_and_frees_all_blocks(
    config: SimulatedSchedulerConfig,
    split: DisaggregationConfig,
    requests: list[tuple[int, int, float, int, bool]],
) -> None:
    workload = list[WorkloadRequest]()
    at = 0.0
    for number, (inputs, outputs, pause, priority, shares) in enumerate(requests):
        at += pause
        hashes = tuple(f"s{block}" for block in range(inputs // 4)) if shares else ()
        workload.append(WorkloadRequest(f"r{number}", at, inputs, outputs, hashes, 4, priority))
    engines = cores(split.prefill + 2, config=config)
    replayed = replay_disaggregated(
        workload, engines, split, routers=(ReplicaRouter(), ReplicaRouter("least-loaded"))
    )
    assert [timing.id for timing in replayed.timings] == [request.id for request in workload]
    for request, timing in zip(workload, replayed.timings, strict=True):
        assert request.arrival_s < timing.first_token_s <= timing.last_token_s
        assert timing.last_token_s - timing.first_token_s >= request.output_tokens - 1 - 1e-9
    for engine in engines:
        assert engine.scheduler.num_waiting == engine.scheduler.num_running == 0
        assert engine.scheduler.pool.num_free == engine.scheduler.pool.size


def test_fleet_without_decode_replica_raises() -> None:
    with pytest.raises(ValueError, match="at least one prefill"):
        run_split(
            [WorkloadRequest("a", 0.0, 1, 1)], cores(1), DisaggregationConfig(prefill=1, cost=COST)
        )
