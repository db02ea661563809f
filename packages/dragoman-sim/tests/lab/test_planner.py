"""The planner finds the same plan as an exhaustive search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from dragoman_check.load.request_lengths import UniformLength
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_sim.engine.speculative_decoding import SpeculativeConfig
from dragoman_sim.lab.fleet_options import FleetOption, Speculation, build_candidates
from dragoman_sim.lab.gpus import find_gpu
from dragoman_sim.lab.model_shape import load_model_shape, read_model_shape
from dragoman_sim.lab.objectives import Metric, Objective, PlanError, parse_objectives
from dragoman_sim.lab.planner import measure_token_rate, plan, render_plan
from dragoman_sim.lab.prediction_error import find_prediction_error, load_prediction_errors
from dragoman_sim.lab.simulation_report import build_report

from .test_roofline import QWEN3_NEXT

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
    candidates: list[FleetOption],
    workload: Sequence[WorkloadRequest],
    most: int,
    objectives: tuple[Objective, ...] = OBJECTIVES,
) -> float:
    """Return the minimum cost per hour over all configurations and numbers of replicas."""
    costs: list[float] = []
    for candidate in candidates:
        for units in range(1, most // candidate.devices_per_unit + 1):
            report = build_report(candidate.build_fleet(units, "round-robin").serve(workload))
            if all(objective.is_met(report) for objective in objectives):
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
    points = {
        id(fleet): np.array(
            [fleet.cost_per_hour, *(objective.read(fleet.report) for objective in OBJECTIVES)]
        )
        for fleet in result.fleets
        if fleet.units and fleet.report is not None
    }
    front = {id(fleet) for fleet in result.pareto}
    for fleet, own in points.items():
        is_beaten = any((other <= own).all() and (other < own).any() for other in points.values())
        assert is_beaten == (fleet not in front)
    text = render_plan(result)
    assert text.startswith("Cheapest for p99 ttft < 400 ms and p90 itl < 60 ms: ")
    assert result.best is not None
    assert result.best.candidate.description in text


def test_plan_best_among_equal_costs_is_on_pareto_front(
    candidates: list[FleetOption], workload: Sequence[WorkloadRequest]
) -> None:
    # Equal prices, so that only the figures differ; the slower GPU has the first name.
    ties = [
        msgspec.structs.replace(candidate, price=1.0)
        for candidate in candidates
        if candidate.devices_per_unit == 1
    ]
    result = plan(ties, workload, parse_objectives("p99 ttft < 60s"), max_devices=1)
    assert len({fleet.cost_per_hour for fleet in result.fleets}) == 1
    assert len(result.fleets) == len(ties)
    assert result.best is not None
    assert result.best in result.pareto
    assert result.best.candidate.gpu != "l4"


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
    with pytest.raises(PlanError, match="'p75 ttft < 1s' is not an objective"):
        parse_objectives("p99 ttft < 1s, p75 ttft < 1s")


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


def test_build_candidates_refuses_drafts_with_states() -> None:
    found, refused = build_candidates(
        [("h200", find_gpu("h200"), 2.5)],
        [read_model_shape(QWEN3_NEXT, "states"), load_model_shape("meta-llama/Llama-3.1-8B")],
        tensor_parallel=(2,),
        max_num_seqs=(),
        max_num_batched_tokens=(3, 2048),
        speculation=Speculation(SpeculativeConfig(3, "ngram")),
    )
    assert [option.profile.model.name for option in found] == ["Llama-3.1-8B bf16"]
    assert found[0].profile.engine.max_num_batched_tokens == 2048
    assert refused == [
        "states: speculative decoding with groups of kind state is not simulated",
        "Llama-3.1-8B: num_speculative_tokens must be less than max_num_batched_tokens",
    ]


@pytest.fixture(scope="module")
def small() -> Sequence[WorkloadRequest]:
    return generate_poisson(
        np.random.default_rng(1),
        count=60,
        rate=20.0,
        inputs=UniformLength(100, 600),
        outputs=UniformLength(10, 40),
    )


def test_cost_of_tokens_excludes_time_after_last_arrival(small: Sequence[WorkloadRequest]) -> None:
    candidates, _ = build_candidates(
        [(name, find_gpu(name), price) for name, price in (("l4", 0.3), ("h100-sxm", 2.5))],
        [load_model_shape("meta-llama/Llama-3.1-8B")],
        tensor_parallel=(1,),
        max_num_seqs=(),
        max_num_batched_tokens=(),
    )
    result = plan(candidates, small, parse_objectives("p95 latency < 60s"), max_devices=4)
    rate = sum(request.output_tokens for request in small) / (
        small[-1].arrival_s - small[0].arrival_s
    )
    assert len(result.fleets) == 2
    for fleet in result.fleets:
        assert fleet.cost_per_million_tokens == pytest.approx(
            fleet.cost_per_hour / 3600 / rate * 1e6
        )
    # All at once there is no rate but that of the answers.
    burst = [msgspec.structs.replace(request, arrival_s=0.0) for request in small]
    assert measure_token_rate(burst) is None
    fleet = plan(candidates[:1], burst, parse_objectives("p95 latency < 60s")).best
    assert fleet is not None
    assert fleet.report is not None
    expected = fleet.cost_per_hour / 3600 / fleet.report.output_token_rate * 1e6
    assert fleet.cost_per_million_tokens == pytest.approx(expected)


def test_p95_objective_equals_exhaustive_search(small: Sequence[WorkloadRequest]) -> None:
    objectives = parse_objectives("p95 ttft < 150ms, p95 tpot < 40ms")
    candidates, _ = build_candidates(
        [(name, find_gpu(name), price) for name, price in (("l4", 0.3), ("l40s", 0.9))],
        [load_model_shape("Qwen/Qwen3-0.6B"), load_model_shape("meta-llama/Llama-3.1-8B")],
        tensor_parallel=(1,),
        max_num_seqs=(),
        max_num_batched_tokens=(),
        kv_cache_dtypes=("auto", "fp8"),
    )
    result = plan(candidates, small, objectives, max_devices=4)
    assert result.best is not None
    assert result.best.report is not None
    assert result.best.cost_per_hour == brute_force(candidates, small, 4, objectives)
    values = np.array(
        [
            timing.ttft
            for timing in result.best.candidate.build_fleet(result.best.units, "round-robin")
            .serve(small)
            .timings
        ]
    )
    assert objectives[0].read(result.best.report) == pytest.approx(np.percentile(values, 95))
    # Every row names the model.
    text = render_plan(result)
    assert "x Qwen3-0.6B bf16 on l4 tp1 kv fp8" in text
    assert "Llama-3.1-8B bf16 on l40s tp1" in text


def test_shared_expert_ranks_equal_exhaustive_search(small: Sequence[WorkloadRequest]) -> None:
    objectives = parse_objectives("p99 tpot < 14ms")
    candidates, refused = build_candidates(
        [("h100-sxm", find_gpu("h100-sxm"), 2.5)],
        [load_model_shape("Qwen/Qwen3-30B-A3B"), load_model_shape("Qwen/Qwen3-8B")],
        tensor_parallel=(1,),
        max_num_seqs=(),
        max_num_batched_tokens=(),
        data_parallel=(1, 2),
    )
    assert [candidate.devices for candidate in candidates] == [1, 2, 1]
    assert refused == ["Qwen3-8B has no experts: expert parallelism does not apply"]
    result = plan(candidates[:2], small[:30], objectives, max_devices=4)
    assert result.best is not None
    assert result.best.cost_per_hour == brute_force(candidates[:2], small[:30], 4, objectives)
    assert " dp2 ep " in candidates[1].description


def test_speculative_plan_equals_exhaustive_search(small: Sequence[WorkloadRequest]) -> None:
    objectives = parse_objectives("mean tpot < 30ms")
    costs = list[float]()
    for speculation in (None, Speculation(SpeculativeConfig(3, "ngram"), (0.9, 0.8, 0.7))):
        candidates, _ = build_candidates(
            [("l4", find_gpu("l4"), 0.3), ("l40s", find_gpu("l40s"), 0.9)],
            [load_model_shape("meta-llama/Llama-3.1-8B")],
            tensor_parallel=(1,),
            max_num_seqs=(),
            max_num_batched_tokens=(),
            speculation=speculation,
        )
        result = plan(candidates, small[:30], objectives, max_devices=6)
        assert result.best is not None
        costs.append(result.best.cost_per_hour)
        assert costs[-1] == pytest.approx(brute_force(candidates, small[:30], 6, objectives))
    assert costs[1] <= costs[0]


@pytest.mark.parametrize("margin", [None, 0.0, 0.5])
def test_fleet_within_margin_of_limit_is_marked(
    small: Sequence[WorkloadRequest], margin: float | None
) -> None:
    candidates, _ = build_candidates(
        [("l40s", find_gpu("l40s"), 0.9)],
        [load_model_shape("meta-llama/Llama-3.1-8B")],
        tensor_parallel=(1,),
        max_num_seqs=(),
        max_num_batched_tokens=(),
    )
    loose = plan(candidates, small, parse_objectives("p99 tpot < 10s")).best
    assert loose is not None
    assert loose.report is not None
    value = Objective("p99", "tpot", 1.0).read(loose.report)
    # 5 % below the limit: L40S predictions of dense models are off by 8.6 %.
    objectives = (Objective("p99", "tpot", 1.05 * value),)
    result = plan(candidates, small, objectives, margin=margin)
    assert result.best is not None
    assert result.best.margins == pytest.approx((0.05,))
    assert result.best.is_within_error == (margin != 0.0)
    assert ("less than the error of the prediction" in render_plan(result)) == (margin != 0.0)


def test_prediction_errors_are_those_of_docs() -> None:
    page = (Path(__file__).parents[4] / "docs/plan.md").read_text(encoding="utf-8")
    table = page.partition("roofline-held-out: begin")[2].partition("roofline-held-out: end")[0]
    for row in load_prediction_errors():
        metrics: tuple[tuple[Metric, str], ...] = (
            ("ttft", "ttft"),
            ("tpot", "tpot"),
            ("latency", "e2e"),
        )
        for metric, name in metrics:
            share = 100 * find_prediction_error(
                row.gpu, metric, is_moe=row.model == "mixture of experts"
            )
            line = rf"\| decode \| {row.model} \| {row.gpu} \| \d+ \| {name} \| {share:.1f} \|"
            assert re.search(line, table)
    # A device without rows has the error of all.
    every = next(
        row for row in load_prediction_errors() if (row.model, row.gpu) == ("dense", "all")
    )
    assert find_prediction_error("b200", "itl", is_moe=False) == every.tpot
