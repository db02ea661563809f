"""`dragoman calibrate` fits a profile to logs, or to load on a server, and reports its
error.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli_core.cli_runner import call, get_error, get_output
from tests.load.logs import examples

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_check.load.load_driver import Target, measure_server
from dragoman_check.load.logs.log_reader import read_any
from dragoman_check.load.logs.measured_log import LogError
from dragoman_check.load.request_lengths import FixedLength
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_sim.engine.profile import load
from tests.loopback import serve_app

LIKE = ("--like", "rtx4090-llama-3.1-8b", "--no-spread")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the log of a simulated server."""
    path = tmp_path_factory.mktemp("logs") / "log.jsonl"
    load = ("--num-prompts", "90", "--request-rate", "4", "--output-len", "20-60")
    get_output("simulate", "poisson", *load, "--save-detailed", str(path))
    return str(path)


def test_calibrate_writes_profile_with_reported_error(log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "mine.yaml")
    output = get_output(
        "calibrate", log, *LIKE[:2], "--name", "mine", "--model", "other", "--out", path
    )
    assert "fitted on 30 requests, evaluated on the other 60" in output
    profile = load(path)
    assert (profile.name, profile.hardware.name, profile.model.name) == (
        "mine",
        "1x NVIDIA RTX 4090",
        "other",
    )
    assert profile.calibration is not None
    assert profile.calibration.source == "JSON Lines: log.jsonl"
    assert profile.calibration.error is not None
    assert abs(profile.calibration.error.latency.mean) < 0.05
    assert f"{profile.calibration.error.ttft.mean:+.2%}" in output
    spread = profile.calibration.spread
    assert spread is not None
    assert spread.lowest.tpot.p90 <= profile.calibration.error.tpot.p90 <= spread.highest.tpot.p90
    assert f"{spread.highest.tpot.p99:+.2%}" in output.split("from, to")[1]
    assert "profile          mine" in get_output("simulate", log, "--profile", path)


def test_calibrate_fits_multiple_logs_together(log: str) -> None:
    assert "fitted on 60 requests, evaluated on the other 120" in get_output(
        "calibrate", log, log, *LIKE
    )
    assert "fitted on 40 requests" in get_output("calibrate", log, *LIKE, "--fit-requests", "40")


@pytest.mark.parametrize("suffix", [".png", pytest.param(".html", marks=pytest.mark.long)])
def test_calibrate_plots_points_fit_and_error(log: str, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"fit{suffix}"
    get_output("calibrate", log, *LIKE, "--plots", str(path))
    assert path.stat().st_size > 10_000


def test_calibrate_large_error_warns_about_settings(log: str) -> None:
    result = call("calibrate", log, *LIKE, "--max-num-seqs", "2")
    assert "Warning: the error of a mean is" in result.stderr
    assert "--max-num-seqs" in result.stderr
    assert "Warning" not in call("calibrate", log, *LIKE).stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["absent.csv"], "absent.csv: No such file"),
        (["absent.csv", "--like", "x"], "there is no profile 'x'"),
        (["absent.csv", "--plots", "x.gif"], "must end in"),
        (["http://x", "y", "--url", "http://127.0.0.1:9"], "takes exactly one workload"),
        (["poisson", "--url", "http://127.0.0.1:9"], "cannot list its models"),
        (["poisson", "--url", "http://127.0.0.1:9", "--extra-body", "["], "--extra-body: "),
    ],
)
def test_calibrate_invalid_arguments_print_one_line_error(arguments: list[str], why: str) -> None:
    assert why in get_error("calibrate", *arguments)


def test_calibrate_log_without_column_names_column(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(examples.vllm_bench(start_times=None))
    error = get_error("calibrate", str(path))
    assert str(path) in error
    assert "start_times are missing" in error
    path.write_bytes(examples.vllm_bench())
    assert "at least 20 requests are needed" in get_error(
        "calibrate", str(path), "--fit-requests", "3"
    )
    assert "at least one must be fitted, and one held out" in get_error(
        "calibrate", str(path), "--fit-requests", "4"
    )


def test_profile_with_zero_base_is_rejected(log: str, tmp_path: Path) -> None:
    path = tmp_path / "edited.yaml"
    get_output("calibrate", log, *LIKE, "--out", str(path))
    lines = path.read_text().splitlines()
    path.write_text(
        "\n".join("  base: 0.0" if line.startswith("  base:") else line for line in lines)
    )
    assert "base must be more than 0 seconds" in get_error(
        "simulate", "poisson", "--profile", str(path)
    )


@pytest.mark.parametrize("like", [(), ("--like", "rtx4090-llama-3.1-8b")])
def test_calibrate_unknown_kv_cache_dtype_is_rejected(log: str, like: tuple[str, ...]) -> None:
    assert "--kv-cache-dtype nonsense is not simulated" in get_error(
        "calibrate", log, "--no-spread", *like, "--kv-cache-dtype", "nonsense"
    )


def test_calibrate_kv_cache_dtype_converts_profile(log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "fp8.yaml")
    base = load(LIKE[1])
    get_output("calibrate", log, *LIKE, "--kv-cache-dtype", "fp8", "--out", path)
    profile = load(path)
    assert profile.model.kv_cache_dtype == "fp8"
    assert base.model.kv_bytes_per_token is not None
    assert profile.model.kv_bytes_per_token == base.model.kv_bytes_per_token // 2
    assert profile.engine.num_gpu_blocks == 2 * base.engine.num_gpu_blocks
    size = ("--kv-bytes-per-token", "1000")
    get_output("calibrate", log, "--no-spread", "--kv-cache-dtype", "fp8", *size, "--out", path)
    assert load(path).model.kv_cache_dtype == "fp8"
    assert load(path).model.kv_bytes_per_token == 1000


def test_calibrate_disable_hybrid_cache_joins_groups(log: str, tmp_path: Path) -> None:
    path = str(tmp_path / "gpt-oss.yaml")
    model = ("--gpu", "h100-sxm", "--model", "openai/gpt-oss-20b")
    get_output("profile", *model, "--out", path)
    base = load(path)
    assert base.engine.kv_cache_groups
    like = ("--like", path, "--no-spread")
    get_output("calibrate", log, *like, "--disable-hybrid-kv-cache-manager", "--out", path)
    assert load(path).engine == base.join_kv_cache_groups().engine


# A live server.


def test_measure_server_uses_server_token_counts() -> None:
    first = generate_poisson(
        np.random.default_rng(0), count=6, rate=200.0, inputs=FixedLength(9), outputs=FixedLength(4)
    )
    workload = [*first, WorkloadRequest("next", 0.01, 5, 3, after="r0")]
    done: list[int] = []
    with serve_app(build_asgi_app(build_models(Settings(), SystemClock()))) as url:
        log = measure_server(Target(f"{url}/v1", api_key="any"), workload, done.append)
    assert sorted(done) == list(range(1, 8))
    assert sorted(request.id for request in log.requests) == sorted(
        request.id for request in workload
    )
    assert [timing.output_tokens for timing in log.timings if timing.id != "next"] == [4] * 6
    assert all(timing.input_tokens >= 5 for timing in log.timings)
    times = {timing.id: timing for timing in log.timings}
    assert times["next"].arrival_s > times["r0"].last_token_s


def test_measure_server_error_is_quoted() -> None:
    extra = '{"model": "absent", "min_tokens": null}'
    with (
        serve_app(build_asgi_app(build_models(Settings(), SystemClock()))) as url,
        pytest.raises(LogError, match=r"the first error: 404: .*absent"),
    ):
        measure_server(
            Target(url, extra_body=extra), [WorkloadRequest("a", 0.0, 3, 3)], lambda _: None
        )


def test_calibrate_saves_measurements_as_readable_log(tmp_path: Path) -> None:
    path = tmp_path / "measured.jsonl"
    load = (
        "poisson",
        "--num-prompts",
        "8",
        "--request-rate",
        "500",
        "--input-len",
        "4",
        "--output-len",
        "3",
    )
    with serve_app(build_asgi_app(build_models(Settings(), SystemClock()))) as url:
        error = get_error(
            "calibrate", *load, "--url", url, "--fit-requests", "4", "--save-detailed", str(path)
        )
    assert "at least 20" in error
    assert len(read_any(path.read_bytes()).requests) == 8
