from __future__ import annotations

import numpy as np
import pytest

from dragoman.core.errors import RequestError
from dragoman_check.load.load_statistics import Slo, summarize
from dragoman_check.load.request_lengths import FixedLength, UniformLength
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import (
    SessionOptions,
    generate_poisson,
    generate_sessions,
)
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.replay import replay
from dragoman_sim.lab.replica_router import ReplicaRouter
from dragoman_sim.lab.simulation_report import build_report, render_report

CONFIG = SimulatedSchedulerConfig(num_gpu_blocks=1000, async_scheduling=False)
TALKS = SessionOptions(
    FixedLength(4),
    UniformLength(100, 300),
    UniformLength(20, 60),
    think_seconds=1.0,
    system_tokens=320,
)


def cores(
    count: int = 1, seconds: float = 1.0, config: SimulatedSchedulerConfig = CONFIG
) -> list[EngineCore]:
    return [EngineCore(SimulatedScheduler(config), lambda _: seconds) for _ in range(count)]


def test_replay_single_request_times() -> None:
    (timing,) = replay([WorkloadRequest("a", 5.0, 10, 3)], cores(), frontend_seconds=0.5).timings
    assert (timing.scheduled_s, timing.first_token_s, timing.last_token_s) == (5.5, 6.5, 8.5)
    assert (timing.ttft, timing.latency, timing.tpot) == (1.5, 3.5, 1.0)


def test_replay_skips_idle_time_and_accepts_unsorted_lines() -> None:
    workload = [WorkloadRequest("late", 1e6, 1, 1), WorkloadRequest("early", 0.0, 1, 1)]
    assert [timing.first_token_s for timing in replay(workload, cores()).timings] == [1e6 + 1, 1.0]


def test_replay_turn_arrives_after_previous_turn_ends() -> None:
    workload = [WorkloadRequest("a", 0.0, 1, 3), WorkloadRequest("b", 2.0, 1, 1, after="a")]
    assert replay(workload, cores()).timings[1].arrival_s == 5.0


def test_replay_conversation_hits_prefix_cache() -> None:
    replayed = replay(
        generate_sessions(np.random.default_rng(1), count=1, rate=1.0, options=TALKS), cores()
    )
    before = 0
    for timing in replayed.timings:
        assert timing.cached_tokens == before // 16 * 16
        before = timing.input_tokens + timing.output_tokens - 1


def test_replay_until_stops_after_given_requests() -> None:
    workload = [WorkloadRequest(f"r{index}", float(index), 1, 1) for index in range(100)]
    assert len(replay(workload, cores(), until=frozenset({"r0", "r3"})).timings) == 4


def test_replay_oversized_request_rejected() -> None:
    with pytest.raises(RequestError, match="context"):
        replay([WorkloadRequest("a", 0.0, 10**6, 1)], cores())


def test_replay_is_deterministic() -> None:
    workload = generate_poisson(
        np.random.default_rng(3),
        count=40,
        rate=3.0,
        inputs=UniformLength(1, 900),
        outputs=FixedLength(20),
    )
    assert replay(workload, cores(2, 0.03)) == replay(workload, cores(2, 0.03))


def test_replay_routes_round_robin_by_default() -> None:
    workload = [WorkloadRequest(f"r{index}", 0.0, 1, 30 if index == 0 else 1) for index in range(4)]
    assert [timing.replica for timing in replay(workload, cores(2)).timings] == [0, 1, 0, 1]
    rotated = replay(workload, cores(3), router=ReplicaRouter()).timings
    assert [timing.replica for timing in rotated] == [0, 1, 2, 0]
    apart = [
        WorkloadRequest("long", 0.0, 1, 30),
        WorkloadRequest("x", 5.0, 1, 1),
        WorkloadRequest("y", 9.0, 1, 1),
    ]
    assert [
        timing.replica
        for timing in replay(apart, cores(2), router=ReplicaRouter("least-loaded")).timings
    ] == [
        0,
        1,
        1,
    ]


def test_replay_prefix_aware_routing_increases_cache_hits() -> None:
    workload = generate_sessions(np.random.default_rng(2), count=30, rate=2.0, options=TALKS)
    hits = {
        name: build_report(replay(workload, cores(4, 0.02), router=router)).cache_hits
        for name, router in (("turns", ReplicaRouter()), ("prefix", ReplicaRouter("prefix-aware")))
    }
    assert hits["prefix"] > hits["turns"] + 0.1


def test_build_report_computes_rates_and_means() -> None:
    workload = [WorkloadRequest("a", 0.0, 32, 3), WorkloadRequest("b", 0.0, 16, 1)]
    found = build_report(replay(workload, cores()), Slo(latency=2.0))
    assert (found.requests, found.duration, found.good, found.goodput) == (
        2,
        3.0,
        1,
        pytest.approx(1 / 3),
    )
    assert (found.request_rate, found.input_token_rate) == (pytest.approx(2 / 3), 16.0)
    assert found.output_token_rate == pytest.approx(4 / 3)
    assert (found.ttft.mean, found.itl.p99, found.latency.mean) == (1.0, 1.0, 2.0)
    assert found.tpot.mean == 1.0, "an answer with one token has none"
    assert (found.preemptions, found.cache_hits) == (0, 0.0)
    assert 0 < found.kv_usage_mean <= found.kv_usage_max == 3 / 999
    report = render_report(found)
    assert "1 within the SLO" in report
    assert "TTFT             1000.00" in report


def test_summarize_matches_numpy_and_empty_is_zero() -> None:
    assert summarize([1.0, 2.0, 3.0]).p90 == pytest.approx(2.8)
    assert summarize([]).mean == 0.0


def test_replay_small_kv_cache_causes_preemptions_and_waiting() -> None:
    workload = [WorkloadRequest(f"r{index}", 0.0, 100, 100) for index in range(10)]
    small = SimulatedSchedulerConfig(num_gpu_blocks=40)
    found = build_report(replay(workload, cores(config=small)))
    assert found.preemptions > 0
    assert found.waiting_mean > 1
    assert found.kv_usage_max > 0.9
