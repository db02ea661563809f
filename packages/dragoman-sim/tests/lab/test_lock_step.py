"""Ranks in lock-step: steps of a server begin and end together, and every request is
served as by independent ranks.
"""

from __future__ import annotations

import numpy as np
import pytest

from dragoman_check.load.request_lengths import UniformLength
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import LatencyModel, StepLoad, TokenCost
from dragoman_sim.engine.profile import RankLayout
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.calibration import evaluate
from dragoman_sim.lab.latency_fit import fit, simulate
from dragoman_sim.lab.lock_step_replay import replay_in_lock_step
from dragoman_sim.lab.prior import Prior
from dragoman_sim.lab.replay import replay
from dragoman_sim.lab.replay_result import ReplayResult
from dragoman_sim.lab.replica_router import ReplicaRouter

LATENCY = LatencyModel(base=0.01, per_token=(TokenCost(0, 1e-4),))


def cores(count: int, *, is_async: bool = True) -> list[EngineCore]:
    config = SimulatedSchedulerConfig(num_gpu_blocks=1000, async_scheduling=is_async)
    return [EngineCore(SimulatedScheduler(config), LATENCY.compute_seconds) for _ in range(count)]


def run_ranks(
    workload: list[WorkloadRequest], count: int, ranks: int, *, is_async: bool = True
) -> ReplayResult:
    engines = cores(count, is_async=is_async)
    result = replay_in_lock_step(workload, engines, ranks, router=ReplicaRouter())
    assert [(core.scheduler.num_running, core.scheduler.pool.num_used) for core in engines] == [
        (0, 0)
    ] * count
    return result


@pytest.mark.parametrize("is_async", [True, False])
def test_lock_step_ranks_of_server_share_step_times(is_async: bool) -> None:
    workload = [
        WorkloadRequest(f"r{index}", 0.013 * index, 40 + 200 * (index % 2), 8)
        for index in range(12)
    ]
    result = run_ranks(workload, 4, 2, is_async=is_async)
    assert len(result.timings) == 12
    for first in (0, 2):
        one = result.steps[first]
        other = result.steps[first + 1]
        assert list(one.begins) == list(other.begins)
        assert list(one.ends) == list(other.ends)
        assert list(one.tokens) == list(other.tokens), "the load that the duration is due to"
        assert min(one.running) == 0 or min(other.running) == 0, "no dummy step was run"
    assert list(result.steps[0].ends) != list(result.steps[2].ends), (
        "servers are independent of each other"
    )


@pytest.mark.parametrize("is_async", [True, False])
def test_lock_step_equal_ranks_match_independent_ranks(is_async: bool) -> None:
    workload = [WorkloadRequest(f"r{index}", 0.05 * (index // 2), 100, 5) for index in range(10)]
    alone = replay(workload, cores(2, is_async=is_async), router=ReplicaRouter())
    together = run_ranks(workload, 2, 2, is_async=is_async)
    assert together.timings == alone.timings


def test_lock_step_long_prompt_delays_other_rank() -> None:
    """A decoding request of one rank waits for the prompt of the other in every step."""
    decoding = WorkloadRequest("decoding", 0.0, 16, 50)
    prompt = WorkloadRequest("prompt", 0.1, 2000, 1)
    alone = replay([decoding, prompt], cores(2), router=ReplicaRouter())
    together = run_ranks([decoding, prompt], 2, 2)
    held_up = together.timings[0].latency - alone.timings[0].latency
    assert held_up == pytest.approx(
        LATENCY.compute_seconds(StepLoad(2000)) - LATENCY.compute_seconds(StepLoad(1))
    )


def test_lock_step_experts_share_tokens_of_all_ranks() -> None:
    latency = LatencyModel(base=0.01, per_expert_token=(TokenCost(0, 1e-4),))
    assert latency.compute_seconds(StepLoad(100)) == pytest.approx(0.02)
    assert latency.compute_seconds(StepLoad(100, expert_tokens=50)) == pytest.approx(0.015)
    config = SimulatedSchedulerConfig(num_gpu_blocks=1000)
    ranks = [EngineCore(SimulatedScheduler(config), latency.compute_seconds) for _ in range(2)]
    result = replay_in_lock_step(
        [WorkloadRequest("one", 0.0, 100, 1)], ranks, 2, router=ReplicaRouter()
    )
    assert result.timings[0].ttft == pytest.approx(0.015), (
        "the other rank's dummy step has no tokens"
    )


def test_lock_step_fit_recovers_latencies() -> None:
    """Also for ranks that share experts, whose initial estimate is a fifth too low."""
    experts = (TokenCost(0, 4e-4), TokenCost(16, 5e-5))
    actual = LatencyModel(
        0.012, (TokenCost(0, 2e-5),), per_context_token=2e-8, per_expert_token=experts
    )
    config = SimulatedSchedulerConfig(num_gpu_blocks=20_000, max_num_seqs=64)
    ranks = RankLayout(2, lock_step=True)
    workload = generate_poisson(
        np.random.default_rng(3),
        count=120,
        rate=6.0,
        inputs=UniformLength(50, 900),
        outputs=UniformLength(20, 200),
    )
    measured = simulate(workload, config, actual, 0.001, ranks=ranks).timings
    expected = Prior(
        base=0.012,
        per_expert_token=tuple(TokenCost(cost.beyond, 0.8 * cost.seconds) for cost in experts),
    )
    found = fit(workload, measured[:60], config, expected, ranks=ranks)
    error = evaluate(
        (workload, measured),
        config,
        found.latency,
        found.frontend_seconds,
        {each.id for each in measured[:60]},
        ranks,
    )
    assert max(abs(metric.mean) for metric in (error.ttft, error.latency, error.tpot)) < 0.02
    alone = evaluate(
        (workload, measured), config, found.latency, found.frontend_seconds, set(), RankLayout(2)
    )
    assert abs(alone.ttft.mean) > 0.02, "lock-step makes a difference here"
