"""The planner finds the same plan as an exhaustive search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dragoman_check.load.request_lengths import UniformLength
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_sim.lab.fleet_options import FleetOption, build_candidates
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.model_shape import load_model_shape
from dragoman_sim.lab.objectives import Objective, PlanError, parse_objectives
from dragoman_sim.lab.planner import plan, render_plan
from dragoman_sim.lab.simulation_report import build_report

OBJECTIVES = parse_objectives("p99 ttft < 400ms, p90 itl < 60ms")


@pytest.fixture(scope="module")
def workload() -> Sequence[WorkloadRequest]:
    generator = np.random.default_rng(0)
    return generate_poisson(
        generator,
        count=120,
        rate=12.0,
        inputs=UniformLength(200, 1500),
        outputs=UniformLength(20, 120),
    )


@pytest.fixture(scope="module")
def candidates() -> list[FleetOption]:
    found, refused = build_candidates(
        [
            (name, find_gpu(name), price)
            for name, price in (("l4", 0.7), ("l40s", 0.9), ("rtx4090", 0.4))
        ],
        [load_model_shape("meta-llama/Llama-3.1-8B")],
        tensor_parallel=(1, 2),
        max_num_seqs=(32, 256),
        max_num_batched_tokens=(1024, 4096),
        splits=((0, 1), (1, 1)),
    )
    assert not refused
    assert len(found) == 3 * 2 * 2 * 2 * 2
    return found


def brute_force(
    candidates: list[FleetOption], workload: Sequence[WorkloadRequest], most: int
) -> float:
    """Return the minimum cost per hour over all configurations and numbers of replicas."""
    costs: list[float] = []
    for candidate in candidates:
        for units in range(1, most // candidate.devices_per_unit + 1):
            report = build_report(candidate.build_fleet(units, "least-loaded").serve(workload))
            if all(objective.is_met(report) for objective in OBJECTIVES):
                costs.append(units * candidate.devices_per_unit * candidate.price)
    return min(costs)


@pytest.mark.long
def test_plan_equals_exhaustive_search(
    candidates: list[FleetOption], workload: Sequence[WorkloadRequest]
) -> None:
    result = plan(candidates, workload, OBJECTIVES, max_devices=8)
    assert result.best is not None
    assert result.best.cost_per_hour == pytest.approx(brute_force(candidates, workload, 8))
    assert any(fleet.units > 1 for fleet in result.fleets), (
        "one replica is enough for all: the search was trivial"
    )
    assert any(not fleet.units for fleet in result.fleets), (
        "every configuration is enough: none was rejected"
    )


def test_plan_with_multiple_processes_equals_single_process(
    candidates: list[FleetOption], workload: Sequence[WorkloadRequest]
) -> None:
    few = candidates[:6]
    assert plan(few, workload, OBJECTIVES, max_devices=4, processes=2) == plan(
        few, workload, OBJECTIVES, max_devices=4
    )


def test_plan_pareto_front_is_not_dominated(
    candidates: list[FleetOption], workload: Sequence[WorkloadRequest]
) -> None:
    # Every fifth still has all GPUs, sizes and layouts.
    result = plan(candidates[::5], workload, OBJECTIVES, max_devices=8)
    points = [
        (fleet.cost_per_hour, OBJECTIVES[0].read(fleet.report))
        for fleet in result.fleets
        if fleet.units and fleet.report is not None
    ]
    for fleet in result.pareto:
        assert fleet.report is not None
        own = (fleet.cost_per_hour, OBJECTIVES[0].read(fleet.report))
        assert not any(cost <= own[0] and value < own[1] for cost, value in points)
    text = render_plan(result)
    assert text.startswith("Cheapest for p99 ttft < 400 ms and p90 itl < 60 ms: ")
    assert result.best is not None
    assert result.best.candidate.description in text


def test_plan_without_solution_states_reason(
    candidates: list[FleetOption], workload: Sequence[WorkloadRequest]
) -> None:
    impossible = parse_objectives("p50 itl < 1us")
    result = plan(candidates[:2], workload, impossible, max_devices=2)
    assert result.best is None
    assert "are not enough for p50 itl < 0.001 ms" in render_plan(result)
    too_long = [WorkloadRequest("long", 0.0, 500_000, 10)]
    failure = plan(candidates[:1], too_long, OBJECTIVES).fleets[0].failure
    assert failure is not None
    assert "500000" in failure.replace(",", "")


def test_parse_objectives_invalid_objective_raises_error() -> None:
    assert parse_objectives("mean e2e <= 2s, p90 TPOT < 50 ms") == (
        Objective("mean", "latency", 2.0),
        Objective("p90", "tpot", 0.05),
    )
    with pytest.raises(PlanError, match="'p95 ttft < 1s' is not an objective"):
        parse_objectives("p99 ttft < 1s, p95 ttft < 1s")


def test_build_candidates_reports_models_too_large() -> None:
    found, refused = build_candidates(
        [("l4", find_gpu("l4"), 0.7)],
        [load_model_shape("meta-llama/Llama-3.3-70B-Instruct")],
        tensor_parallel=(1, 8),
        max_num_seqs=(),
        max_num_batched_tokens=(),
    )
    assert [candidate.devices for candidate in found] == [8]
    assert len(refused) == 1
    assert "does not fit on 1 x NVIDIA L4" in refused[0]
