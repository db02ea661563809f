"""Adapters on the virtual clock: the cost of their products and of loading, and
requests that wait for a slot.
"""

from __future__ import annotations

import pytest

from dragoman_check.load.request_timing import Timing
from dragoman_check.load.trace_file import encode_workload, read_workload
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_transforms import assign_loras
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.latency import LatencyModel, StepLoad
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig
from dragoman_sim.lab.replay import replay

LATENCY = LatencyModel(base=1.0, lora_base=0.25, per_lora_token=0.01, lora_load=10.0)


def serve(workload: list[WorkloadRequest], max_loras: int = 1) -> list[Timing]:
    config = SimulatedSchedulerConfig(
        num_gpu_blocks=500, async_scheduling=False, max_loras=max_loras
    )
    return replay(
        workload, [EngineCore(SimulatedScheduler(config), LATENCY.compute_seconds)]
    ).timings


def test_adapter_loads_once_and_adds_step_cost() -> None:
    first, second, plain = serve(
        [
            WorkloadRequest("a", 0.0, 4, 2, lora="x"),
            WorkloadRequest("b", 100.0, 4, 2, lora="x"),
            WorkloadRequest("c", 200.0, 4, 2),
        ]
    )
    assert first.ttft == pytest.approx(1 + 0.25 + 0.04 + 10)
    assert second.ttft == pytest.approx(1 + 0.25 + 0.04)
    assert second.latency - second.ttft == pytest.approx(1 + 0.25 + 0.01)
    assert plain.ttft == pytest.approx(1.0)


def test_adapter_cache_evicts_least_recently_used() -> None:
    order = ["x", "y", "x", "z", "x", "y"]
    workload = [
        WorkloadRequest(f"r{index}", 100.0 * index, 4, 1, lora=name)
        for index, name in enumerate(order)
    ]
    loaded = [timing.ttft > 5 for timing in serve(workload, max_loras=2)]
    assert loaded == [True, True, False, True, False, True]


def test_adapter_over_max_loras_waits_while_others_run() -> None:
    workload = [
        WorkloadRequest("a", 0.0, 4, 5, lora="x"),
        WorkloadRequest("b", 0.0, 4, 1, lora="y"),
        WorkloadRequest("c", 0.0, 4, 1),
    ]
    a, b, c = serve(workload)
    assert c.first_token_s == a.first_token_s
    assert b.first_token_s > a.last_token_s
    assert len({timing.first_token_s for timing in serve(workload, max_loras=2)}) == 1


def test_prefix_cache_separates_adapters() -> None:
    hashes = ("one", "two")
    workload = [
        WorkloadRequest("a", 0.0, 40, 1, hashes, lora="x"),
        WorkloadRequest("b", 100.0, 40, 1, hashes, lora="y"),
        WorkloadRequest("c", 200.0, 40, 1, hashes, lora="x"),
    ]
    assert [timing.cached_tokens for timing in serve(workload)] == [0, 0, 32]


def test_assign_loras_alternates_per_conversation() -> None:
    workload = [
        WorkloadRequest("a", 0.0, 4, 1),
        WorkloadRequest("b", 0.0, 4, 1, after="a"),
        WorkloadRequest("c", 1.0, 4, 1),
        WorkloadRequest("d", 2.0, 4, 1),
    ]
    assigned = assign_loras(workload, ["x", "y"])
    assert [request.lora for request in assigned] == ["x", "x", "y", "x"]
    assert read_workload(encode_workload(assigned).splitlines()) == assigned


def test_compute_seconds_without_adapters_adds_no_cost() -> None:
    assert LATENCY.compute_seconds(StepLoad(100)) == 1.0
