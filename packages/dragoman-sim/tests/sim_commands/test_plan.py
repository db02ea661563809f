"""`dragoman profile` and `dragoman plan`: files and figures, and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli_core.cli_runner import get_error, get_output

from dragoman_check.load.workload import WorkloadRequest
from dragoman_sim.commands.plan_plots import RATE_FACTORS, build_rate_panel
from dragoman_sim.engine.profile import load
from dragoman_sim.lab.fleet import Fleet
from dragoman_sim.lab.objectives import parse_objectives

SMALL = (
    "poisson",
    "--num-prompts",
    "30",
    "--request-rate",
    "5",
    "--input-len",
    "50-200",
    "--output-len",
    "20",
)
LLAMA = "meta-llama/Llama-3.1-8B"
QUESTION = (
    "plan",
    *SMALL,
    "--slo",
    "p99 ttft < 1s",
    "--gpus",
    "l40s:0.9,rtx4090:0.4",
    "--models",
    LLAMA,
    "--tp",
    "1,2",
)


def test_simulate_accepts_predicted_profile(tmp_path: Path) -> None:
    path = str(tmp_path / "l40s.yaml")
    output = get_output(
        "profile",
        "--gpu",
        "l40s",
        "--model",
        LLAMA,
        "--dtype",
        "fp8",
        "--max-num-seqs",
        "64",
        "-o",
        path,
    )
    assert "Llama-3.1-8B fp8 on 1x NVIDIA L40S, predicted from datasheets" in output
    assert load(path).engine.max_num_seqs == 64
    assert "l40s-llama-3.1-8b-tp1" in get_output("simulate", *SMALL, "--profile", path)


def test_profile_without_file_is_printed() -> None:
    output = get_output(
        "profile", "--gpu", "h100-sxm", "--model", "Qwen/Qwen3-30B-A3B", "--dp", "2", "--ep"
    )
    assert "lock_step: true" in output
    assert "per_expert_token:" in output


def test_profile_speculative_config_is_written(tmp_path: Path) -> None:
    path = str(tmp_path / "drafts.yaml")
    ask = ("profile", "--gpu", "l40s", "--speculative-config")
    drafts = '{"method": "eagle3", "num_speculative_tokens": 3}'
    get_output(*ask, drafts, "--model", LLAMA, "--out", path)
    engine = load(path).engine
    assert (engine.num_speculative_tokens, engine.num_lookahead_tokens) == (3, 3)
    assert "--speculative-config: " in get_error(*ask, "{}", "--model", LLAMA)


def test_profile_accepts_custom_gpu_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "name: Own\nmemory: 48e9\nmemory_bandwidth: 1e12\nflops: {bf16: 200e12}\n"
        "link_bandwidth: 16e9\nlink_latency: 2e-5\n"
    )
    assert "name: 1x Own" in get_output("profile", "--gpu", str(path), "--model", LLAMA)


def test_plan_prints_cheapest_fleet_and_cost() -> None:
    output = get_output(*QUESTION)
    assert output.startswith(
        "Cheapest for p99 ttft < 1000 ms: 1 replica of Llama-3.1-8B bf16 on rtx4090 tp1"
    )
    assert "0.40 per hour" in output


def test_plan_json_lists_all_fleets_and_writes_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "plan.html"
    document = json.loads(
        get_output(*QUESTION, "--prefill-decode", "1:1", "--json", "--plots", str(page))
    )
    assert len(document["fleets"]) == 8
    best = document["fleets"][0]
    assert best["meets_slo"]
    assert best["pareto"]
    assert best["cost_per_hour"] == pytest.approx(0.4)
    assert best["report"]["requests"] == 30
    assert page.read_text().startswith("<!doctype html>")


def test_rate_panel_has_rates_of_arrivals_and_plain_ticks() -> None:
    figures = pytest.importorskip("matplotlib.figure")
    workload = [WorkloadRequest(f"{number}", number / 5, 200, 20) for number in range(20)]
    report = Fleet(profile=load("rtx4090-llama-3.1-8b")).build_report(workload)
    axes = figures.Figure().subplots()
    build_rate_panel([report] * len(RATE_FACTORS), parse_objectives("p99 ttft < 4s")[0])(axes)
    assert tuple(axes.lines[0].get_xdata()) == RATE_FACTORS
    assert axes.yaxis.get_minor_formatter()(4000.0, 0) == "4000"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("profile", "--gpu", "h1000", "--model", LLAMA),
            "there is no GPU 'h1000'; known are a100-sxm",
        ),
        (
            ("profile", "--gpu", "l4", "--model", "llama"),
            "llama: neither a config.json nor a model of the table",
        ),
        (
            ("profile", "--gpu", "l4", "--model", LLAMA, "--dtype", "fp16"),
            "--dtype: must be one of bf16",
        ),
        (
            ("plan", *SMALL, "--slo", "fast", "--gpus", "l4:1", "--models", LLAMA),
            "'fast' is not an objective",
        ),
        (
            ("plan", *SMALL, "--slo", "p99 ttft < 1s", "--gpus", "l4", "--models", LLAMA),
            "'l4' is not NAME:PRICE",
        ),
        ((*QUESTION, "--prefill-decode", "1"), "'1' is not P:D"),
        ((*QUESTION, "--kv-cache-dtype", "int3"), "--kv-cache-dtype int3 is not simulated"),
        ((*QUESTION, "--acceptance-rates", "0.5"), "needs --speculative-config"),
        ((*QUESTION, "--margin", "-1"), "--margin"),
        ((*QUESTION, "--routing", "random"), "--routing: "),
        ((*QUESTION, "--tp", "0,1"), "--tp: '0,1' is not a list of positive integers"),
        (
            (*QUESTION, "--max-num-seqs", "-4"),
            "--max-num-seqs: '-4' is not a list of positive integers",
        ),
        ((*QUESTION, "--gpus", "l4:nan"), "--gpus: 'l4:nan' is not NAME:PRICE"),
        ((*QUESTION, "--gpus", "l4:-1"), "--gpus: 'l4:-1' is not NAME:PRICE"),
        ((*QUESTION, "--gpus", "l4:inf"), "--gpus: 'l4:inf' is not NAME:PRICE"),
        ((*QUESTION, "--tp", "3"), "no configuration is possible, for the reasons above"),
    ],
)
def test_invalid_arguments_print_one_line_error(arguments: tuple[str, ...], text: str) -> None:
    assert text in get_error(*arguments)
