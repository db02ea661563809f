"""`dragoman simulate`: simulations, reports and files; one-line errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli_core.cli_runner import get_error, get_output

from dragoman_check.load.logs.json_lines_log import read_log

SMALL = (
    "--num-prompts",
    "30",
    "--request-rate",
    "5",
    "--input-len",
    "50-200",
    "--output-len",
    "20",
)


def run_simulation(*arguments: str) -> dict[str, Any]:
    return json.loads(get_output("simulate", *arguments, "--json"))["report"]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"id": "a", "arrival_s": 0, "input_tokens": 100, "output_tokens": 4}\n')
    return str(path)


def test_simulate_trace_prints_benchmark_report(trace: str) -> None:
    output = get_output("simulate", trace)
    for word in (
        "rtx4090-llama-3.1-8b",
        "1 replica",
        "requests         1 in",
        "TTFT",
        "TPOT",
        "ITL",
        "p99",
        "KV cache",
    ):
        assert word in output


def test_simulate_equal_seed_gives_equal_report() -> None:
    first = get_output("simulate", "poisson", *SMALL)
    assert get_output("simulate", "poisson", *SMALL) == first
    assert get_output("simulate", "poisson", *SMALL, "--seed", "1") != first


@pytest.mark.parametrize("load", ["poisson", "bursts", "sessions"])
def test_simulate_saved_trace_replays_identically(load: str, tmp_path: Path) -> None:
    path = str(tmp_path / "kept.jsonl")
    assert run_simulation(load, *SMALL, "--save-trace", path) == run_simulation(path)


def test_simulate_sessions_hit_prefix_cache() -> None:
    found = run_simulation("sessions", *SMALL)
    assert found["requests"] > 30
    assert found["cache_hits"] > 0.5
    assert run_simulation("sessions", *SMALL, "--no-enable-prefix-caching")["cache_hits"] == 0


def test_simulate_reads_mooncake_trace(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 2000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = run_simulation(str(path))
    assert found["cache_hits"] == pytest.approx(1024 / 2060), (
        "the last block is incomplete, so it is not shared"
    )


def test_simulate_vllm_flags_change_engine() -> None:
    assert run_simulation("bursts", *SMALL, "--max-num-seqs", "1")["waiting_mean"] > 5
    assert run_simulation("bursts", *SMALL, "--num-gpu-blocks-override", "30")["preemptions"] > 0


def test_simulate_prefix_aware_routing_increases_cache_hits() -> None:
    load = ("sessions", *SMALL, "--replicas", "3")
    turns = run_simulation(*load)
    aware = run_simulation(*load, "--routing", "prefix-aware")
    assert aware["cache_hits"] > turns["cache_hits"]


def test_simulate_separates_prefill_and_decode_replicas() -> None:
    split = ("poisson", *SMALL, "--prefill-replicas", "1", "--decode-replicas", "2")
    output = get_output("simulate", *split)
    assert "1 prefill and 2 decode replicas" in output
    assert "KV transfer" in output
    fast = run_simulation(*split)
    slow = run_simulation(*split, "--kv-transfer-bandwidth", "1e8")
    assert fast["kv_transfer"]["mean"] < 0.01 < slow["kv_transfer"]["mean"]
    assert fast["ttft"]["mean"] < slow["ttft"]["mean"]
    assert run_simulation("poisson", *SMALL)["kv_transfer"] is None


def test_simulate_plain_kv_protocol_has_no_lease_timeout() -> None:
    hasty = ("poisson", *SMALL, "--prefill-replicas", "1", "--kv-lease", "0.000001")
    lost = run_simulation(*hasty)
    held = run_simulation(*hasty, "--kv-protocol", "plain")
    assert lost["kv_transfer"]["mean"] == 0 < held["kv_transfer"]["mean"]


def test_simulate_detailed_log_is_readable_by_calibration(trace: str, tmp_path: Path) -> None:
    path = tmp_path / "details.jsonl"
    get_output("simulate", trace, "--save-detailed", str(path))
    _, (timing,) = read_log(path.read_bytes().splitlines())
    assert (timing.id, timing.output_tokens) == ("a", 4)
    assert 0 < timing.ttft < timing.latency < 1


def test_simulate_detailed_log_of_sessions_replays_as_trace(tmp_path: Path) -> None:
    path = str(tmp_path / "details.jsonl")
    found = run_simulation("sessions", *SMALL, "--save-detailed", path)
    assert run_simulation(path)["cache_hits"] == pytest.approx(found["cache_hits"], abs=0.05)


def test_simulate_goodput_counts_requests_within_slo(trace: str) -> None:
    assert run_simulation(trace, "--slo", "ttft:1000,tpot:1000")["good"] == 1
    assert run_simulation(trace, "--goodput", "ttft:1000", "--goodput", "e2el:1")["good"] == 0
    assert run_simulation(trace)["good"] is None


def test_simulate_sweep_finds_minimum_replicas() -> None:
    load = ("poisson", "--num-prompts", "200", "--request-rate", "20", "--slo", "ttft:300,tpot:40")
    output = get_output("simulate", *load, "--sweep")
    verdict = output.splitlines()[0]
    trials = output.splitlines()[3:]
    enough = int(verdict.split()[0])
    shares = {int(line.split()[0]): float(line.split()[1].rstrip("%")) for line in trials}
    assert shares[enough] >= 99 > shares[enough - 1], "the minimum"
    assert get_output("simulate", *load, "--sweep", "--max-replicas", "2").startswith(
        "2 replicas are not enough"
    )
    assert (
        json.loads(get_output("simulate", *load, "--sweep", "--json"))["sweep"]["enough"] == enough
    )


@pytest.mark.parametrize("suffix", [".png", ".html", ".svg"])
def test_simulate_plots_are_written_to_file(trace: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure{suffix}"
    get_output("simulate", trace, "--plots", str(path), "--slo", "ttft:50")
    drawn = path.read_bytes()
    signs = {".png": b"\x89PNG", ".html": b"<!doctype html>", ".svg": b"<?xml"}
    assert drawn.startswith(signs[suffix])
    if suffix == ".html":
        assert b'src="data:image/svg+xml;base64,' in drawn
        assert b"<script" not in drawn


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["absent.jsonl"], "absent.jsonl: no such file"),
        (["poisson", "--input-len", "x"], "'x' is not a length"),
        (["poisson", "--input-len", "9-3"], "'9-3' is not a length"),
        (["poisson", "--request-rate", "0"], "rate and burstiness must be more than 0"),
        (["poisson", "--request-rate", "nan"], "rate and burstiness must be more than 0"),
        (
            ["poisson", "--profile", "rtx9090"],
            "there is no profile 'rtx9090'; included profiles are a100-llama",
        ),
        (["poisson", "--profile", "absent.yaml"], "absent.yaml: No such file"),
        (["poisson", "--routing", "random"], "Invalid enum value 'random'"),
        (["poisson", "--scheduling-policy", "random"], "--scheduling-policy: Invalid enum value"),
        (["poisson", "--block-size", "0"], "--block-size must be at least 1"),
        (
            ["poisson", "--no-enable-chunked-prefill", "--max-model-len", "9999"],
            "without chunked prefill",
        ),
        (["poisson", "--slo", "ttft"], "'ttft' is not NAME:MILLISECONDS"),
        (["poisson", "--slo", "speed:3"], "must be one of ttft, tpot, latency"),
        (["poisson", "--sweep"], "needs an SLO"),
        (["poisson", "--prefill-replicas", "1", "--kv-links", "x"], "Invalid enum value 'x'"),
        (["poisson", "--prefill-replicas", "1", "--kv-protocol", "x"], "Invalid enum value 'x'"),
        (
            ["poisson", "--prefill-replicas", "1", "--kv-transfer-bandwidth", "0"],
            "must be more than 0",
        ),
        (["poisson", "--speedup", "0"], "factor must be more than 0"),
        (["poisson", "--plots", "x.gif"], "must end in one of .png"),
        (["poisson", "--max-model-len", "10"], "context"),
    ],
)
def test_simulate_invalid_arguments_print_one_line_error(arguments: list[str], why: str) -> None:
    error = get_error("simulate", *arguments)
    assert error.startswith("Error: ")
    assert why in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"id": "a"}', "line 1: Object missing required field `arrival_s`"),
        (
            '\n{"id": "a", "arrival_s": 0, "input_tokens": 0, "output_tokens": 1}',
            "line 2: Expected `int` >= 1",
        ),
        ('{"input_length": 0, "output_length": 3}', "line 1: Expected `int` >= 1"),
        ("", "contains no requests"),
        ("{\xff", "line 1"),
    ],
)
def test_simulate_trace_error_names_line(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="latin-1")
    assert why in get_error("simulate", str(path))


def test_simulate_mixed_fleet_autoscales_and_routes_with_delay() -> None:
    load = ("poisson", "--num-prompts", "60", "--request-rate", "8")
    mixed = get_output(
        "simulate",
        *load,
        "--add-replicas",
        "rtxpro6000-llama-3.1-8b:2",
        "--routing",
        "power-of-two",
    )
    assert "1 x rtx4090-llama-3.1-8b and 2 x rtxpro6000-llama-3.1-8b, power-of-two" in mixed
    scaled = get_output(
        "simulate", *load, "--autoscale", "requests:4", "--max-replicas", "3",
        "--autoscale-interval", "1", "--startup-time", "1", "--routing", "least-requests",
        "--routing-delay", "0.2",
    )  # fmt: skip
    assert "1 to 3 replicas by requests:4" in scaled
    assert "at most 3" in scaled


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--add-replicas", "rtx4090-llama-3.1-8b"], "is not PROFILE:COUNT"),
        (["--autoscale", "waiting"], "is not METRIC:TARGET"),
        (["--autoscale", "rate:3"], "Invalid enum value 'rate'"),
        (["--autoscale", "waiting:3", "--prefill-replicas", "1"], "not with prefill replicas"),
    ],
)
def test_simulate_invalid_fleet_prints_error(arguments: list[str], why: str) -> None:
    assert why in get_error("simulate", "poisson", "--num-prompts", "5", *arguments)


def test_profiles_command_lists_profiles_with_errors() -> None:
    output = get_output("profiles")
    assert "rtx4090-llama-3.1-8b" in output
    assert "%" in output


def test_simulate_imports_matplotlib_only_for_plots() -> None:
    script = (
        "import sys; from dragoman_cli import CommandLine; from click.testing import CliRunner;"
        "app = CommandLine(); run = CliRunner().invoke;"
        "assert run(app, ['simulate', '--help']).exit_code == 0; assert 'numpy' not in sys.modules;"
        "assert run(app, ['simulate', 'poisson', '--num-prompts', '2']).exit_code == 0;"
        "assert 'numpy' in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("enough", [True, False])
def test_simulate_sweep_writes_plots_and_details(tmp_path: Path, enough: bool) -> None:
    plots = tmp_path / "sweep.svg"
    details = tmp_path / "sweep.jsonl"
    slo = "ttft:100000" if enough else "ttft:0.001"
    files = ("--plots", str(plots), "--save-detailed", str(details))
    output = get_output(
        "simulate", "poisson", *SMALL, "--sweep", "--max-replicas", "2", "--slo", slo, *files
    )
    assert f"{1 if enough else 2} replica" in plots.read_text()
    assert len(details.read_text().splitlines()) == 30
    assert ("1 replica is enough" if enough else "2 replicas are not enough") in output


@pytest.mark.parametrize("command", ["simulate", "calibrate"])
def test_misspelled_workload_prints_suggestion_and_list(command: str) -> None:
    more = ("--url", "http://127.0.0.1:1/v1") if command == "calibrate" else ()
    message = get_error(command, "poison", *more)
    assert (
        message
        == "Error: poison: no such file or workload; did you mean poisson? Workloads: poisson, "
        "bursts, sessions\n"
    )
    message = get_error(command, "absent.jsonl", *more)
    assert (
        message
        == "Error: absent.jsonl: no such file or workload. Workloads: poisson, bursts, sessions\n"
    )


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        ("simulate", "--think-time", "nan"),
        ("simulate", "--think-time", "-1"),
        ("simulate", "--system-tokens", "-5"),
        ("calibrate", "--fit-requests", "-1"),
        ("calibrate", "--memory-bandwidth", "0"),
        ("calibrate", "--weight-bytes", "nan"),
        ("calibrate", "--kv-bytes-per-token", "0"),
    ],
)
def test_out_of_range_option_is_rejected_by_name(command: str, option: str, value: str) -> None:
    assert f"Invalid value for '{option}'" in get_error(command, "absent.jsonl", option, value)


@pytest.mark.parametrize("text", ["not json\n", '{"arrival_time": 0}\n', "a,b\n1,2\n"])
def test_simulate_unreadable_trace_names_file(tmp_path: Path, text: str) -> None:
    trace = tmp_path / "odd.jsonl"
    trace.write_text(text)
    assert get_error("simulate", str(trace)).startswith(f"Error: {trace}: ")
