"""Routing policies, routers with stale loads, fleets with several profiles, and
autoscaling in virtual time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from dragoman_check.load.request_lengths import FixedLength, UniformLength
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import (
    SessionOptions,
    generate_poisson,
    generate_sessions,
)
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.profile import load
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.autoscaling import AutoscalerConfig, replay_autoscaled
from dragoman_sim.lab.fleet import Fleet, ReplicaGroup
from dragoman_sim.lab.replay import replay
from dragoman_sim.lab.replica_router import ROUTING_POLICIES, ReplicaRouter, Routing
from dragoman_sim.lab.simulation_report import build_report

CONFIG = SimulatedSchedulerConfig(num_gpu_blocks=2000, max_num_seqs=8)
SLOW = load("rtx4090-llama-3.1-8b")
FAST = load("rtxpro6000-llama-3.1-8b")


def cores(count: int) -> list[EngineCore]:
    return [
        EngineCore(SimulatedScheduler(CONFIG), lambda load: 0.02 + 1e-5 * load.tokens)
        for _ in range(count)
    ]


def route(workload: Sequence[WorkloadRequest], router: ReplicaRouter, count: int = 4) -> list[int]:
    return [timing.replica for timing in replay(workload, cores(count), router=router).timings]


def requests(count: int, seconds: float, *, outputs: int = 20) -> list[WorkloadRequest]:
    return [WorkloadRequest(f"r{index}", seconds * index, 64, outputs) for index in range(count)]


@pytest.mark.parametrize("policy", ROUTING_POLICIES)
def test_router_policy_serves_all_requests_deterministically(policy: Routing) -> None:
    talks = SessionOptions(
        FixedLength(3), UniformLength(50, 200), UniformLength(5, 20), think_seconds=0.5
    )
    workload = generate_sessions(np.random.default_rng(1), count=20, rate=5.0, options=talks)
    runs = [
        route(workload, ReplicaRouter(policy, state_delay=delay, seed=7))
        for delay in (0.0, 0.3, 0.3)
    ]
    assert len(runs[0]) == 60
    assert runs[1] == runs[2]
    assert set(runs[0]) == {0, 1, 2, 3}


def test_router_least_tokens_differs_from_least_requests() -> None:
    workload = [
        WorkloadRequest("long", 0.0, 4000, 100),
        WorkloadRequest("short", 0.01, 16, 100),
        WorkloadRequest("other", 0.02, 16, 100),
        WorkloadRequest("last", 0.03, 16, 100),
    ]
    assert route(workload, ReplicaRouter("least-requests"), 2) == [0, 1, 0, 1]
    assert route(workload, ReplicaRouter("least-tokens"), 2) == [0, 1, 1, 1]


def test_router_session_affinity_keeps_replica() -> None:
    talks = SessionOptions(
        FixedLength(5), UniformLength(50, 200), UniformLength(5, 20), think_seconds=0.5
    )
    workload = generate_sessions(np.random.default_rng(2), count=30, rate=5.0, options=talks)
    replicas = route(workload, ReplicaRouter("session-affinity"))
    by_session: dict[str, set[int]] = {}
    for request, replica in zip(workload, replicas, strict=True):
        by_session.setdefault(request.id.partition("-")[0], set()).add(replica)
    assert all(len(found) == 1 for found in by_session.values())
    assert len(set(replicas)) == 4
    fewer = [WorkloadRequest(f"s{index}", 0.1 * index, 64, 2) for index in range(100)]
    moved = sum(
        a != b
        for a, b in zip(
            route(fewer, ReplicaRouter("session-affinity"), 4),
            route(fewer, ReplicaRouter("session-affinity"), 5),
            strict=True,
        )
    )
    assert 5 < moved < 40, "a new replica takes about a fifth of the sessions from the others"


def test_router_stale_load_overloads_one_replica() -> None:
    """All requests between two polls go to the replica that was idle; power-of-two is
    less affected.
    """
    workload = requests(200, 0.01)
    fresh, old = (
        max(np.bincount(route(workload[:50], ReplicaRouter("least-requests", state_delay=delay))))
        for delay in (0.0, 0.4)
    )
    assert fresh < 20
    assert old > 35
    ttft = {
        policy: build_report(
            replay(workload, cores(4), router=ReplicaRouter(policy, state_delay=0.4))
        ).ttft.mean
        for policy in ("least-requests", "power-of-two")
    }
    assert ttft["power-of-two"] < ttft["least-requests"]


def test_router_llm_d_prefers_prefix_and_avoids_queues() -> None:
    talks = SessionOptions(
        FixedLength(4),
        UniformLength(100, 300),
        UniformLength(20, 60),
        think_seconds=1.0,
        system_tokens=320,
    )
    workload = generate_sessions(np.random.default_rng(2), count=30, rate=2.0, options=talks)
    hits = {
        policy: build_report(replay(workload, cores(4), router=ReplicaRouter(policy))).cache_hits
        for policy in ("llm-d", "round-robin")
    }
    assert hits["llm-d"] > hits["round-robin"] + 0.1
    crowd = requests(100, 0.0, outputs=50)
    assert max(np.bincount(route(crowd, ReplicaRouter("llm-d")))) < 40


def test_router_negative_state_delay_rejected() -> None:
    with pytest.raises(ValueError, match="delay"):
        ReplicaRouter(state_delay=-1)


def test_fleet_with_two_profiles_uses_both() -> None:
    workload = generate_poisson(
        np.random.default_rng(4),
        count=120,
        rate=6.0,
        inputs=UniformLength(50, 500),
        outputs=FixedLength(40),
    )
    fleet = Fleet(profile=SLOW, replicas=1, others=(ReplicaGroup(FAST, 2),), routing="least-loaded")
    result = fleet.serve(workload)
    tpot = {
        replica: [each.tpot for each in result.timings if each.replica == replica and each.tpot]
        for replica in range(3)
    }
    assert np.mean(tpot[0]) > 1.2 * np.mean(tpot[1])
    assert "1 x rtx4090-llama-3.1-8b and 2 x rtxpro6000-llama-3.1-8b" in fleet.description
    other = msgspec.structs.replace(
        FAST, engine=msgspec.structs.replace(FAST.engine, block_size=32)
    )
    with pytest.raises(ValueError, match="block size"):
        Fleet(profile=SLOW, others=(ReplicaGroup(other),))


SCALER = AutoscalerConfig(
    metric="requests",
    target=4,
    max_replicas=5,
    interval=5.0,
    startup_seconds=10.0,
    scale_down_window=20.0,
)


def wave() -> list[WorkloadRequest]:
    """Return a low load for a minute, a high load for two minutes, and a low load for
    four minutes.
    """
    gaps = [2.0] * 30 + [0.06] * 2000 + [2.0] * 120
    return [
        WorkloadRequest(f"r{index}", float(at), 64, 40) for index, at in enumerate(np.cumsum(gaps))
    ]


def test_autoscaler_replicas_follow_load() -> None:
    workload = wave()
    result = replay_autoscaled(workload, cores(5), SCALER, router=ReplicaRouter("least-requests"))
    assert len(result.timings) == len(workload)
    counts = [point.replicas for point in result.replica_counts]
    assert counts[0] == 1
    assert max(counts) >= 3
    assert counts[-1] == 1
    first_change = result.replica_counts[1].at
    assert 60 <= first_change <= 70, "the first decision after the load has grown"
    ready = first_change + SCALER.startup_seconds
    assert all(each.replica == 0 for each in result.timings if each.arrival_s < ready)
    assert any(each.replica == 1 for each in result.timings)
    report = build_report(result)
    assert 1 < report.replicas_mean < report.replicas_max == max(counts)
    assert report.replicas_mean * report.duration == pytest.approx(result.replica_seconds)


def test_autoscaler_scales_down_after_full_window() -> None:
    result = replay_autoscaled(wave(), cores(5), SCALER, router=ReplicaRouter("least-requests"))
    ends = max(each.arrival_s for each in result.timings[:2030])
    peak = max(point.replicas for point in result.replica_counts)
    first_below = next(
        point.at for point in result.replica_counts if point.at > ends and point.replicas < peak
    )
    assert first_below >= ends + SCALER.scale_down_window - SCALER.interval


def test_autoscaler_equal_bounds_equals_fixed_fleet() -> None:
    workload = requests(100, 0.1)
    fixed = msgspec.structs.replace(SCALER, min_replicas=3, max_replicas=3)
    scaled = replay_autoscaled(workload, cores(3), fixed, router=ReplicaRouter())
    assert scaled.timings == replay(workload, cores(3), router=ReplicaRouter()).timings
    assert scaled.replica_seconds == pytest.approx(
        3 * (max(each.last_token_s for each in scaled.timings) - scaled.timings[0].arrival_s)
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"target": 0.0}, "more than 0"),
        ({"min_replicas": 9}, "max_replicas at least min_replicas"),
        ({"startup_seconds": -1.0}, "negative"),
    ],
)
def test_autoscaler_invalid_settings_rejected(changes: dict[str, float], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        msgspec.structs.replace(SCALER, **changes)
