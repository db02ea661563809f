"""`dragoman bench` measures correctly, and writes a log that `calibrate`, `simulate`
and `plan` read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli_core.cli_runner import call, get_error, get_output
from tests.commands.app_client import AppClient
from tests.serving.responses.harness import lifespan

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_check.load.bench_dialects import DIALECTS
from dragoman_check.load.bench_report import build_bench_report
from dragoman_check.load.bench_run import Run, read_run
from dragoman_check.load.concurrency import count_peak
from dragoman_check.load.load_driver import LoadResult, LoadRun, Target
from dragoman_check.load.load_statistics import Slo, summarize
from dragoman_check.load.logs.measured_log import LogError
from dragoman_check.load.request_lengths import UniformLength
from dragoman_check.load.request_timing import Timing
from dragoman_check.load.stream_meter import Measurement, StreamMeter
from dragoman_check.load.workload import WorkloadRequest
from dragoman_check.load.workload_generators import generate_poisson
from dragoman_http import SseDecoder
from dragoman_sim.build import DEFAULT_PROFILE, build_scheduler_config
from dragoman_sim.engine.block_pool import SimulatedBlockPool
from dragoman_sim.engine.engine_core import EngineCore
from dragoman_sim.engine.profile import load
from dragoman_sim.engine.scheduler import SimulatedScheduler
from dragoman_sim.lab.replay import replay
from tests.loopback import serve_app
from tests.virtual_time import run_in_virtual_time

SIM = Settings(model="sim")


def measure(
    settings: Settings,
    workload: Sequence[WorkloadRequest],
    target: Target,
    concurrency: int | None = None,
) -> LoadResult:
    """Run client and server in one event loop on a virtual clock."""

    async def work() -> LoadResult:
        app = build_asgi_app(build_models(settings, SystemClock()))
        async with lifespan(app):
            run = LoadRun(AppClient(app), target, lambda _: None, asyncio.get_running_loop().time)
            return await run.measure(workload, concurrency=concurrency)

    return run_in_virtual_time(work())


def simulate(timings: Sequence[Timing]) -> list[Timing]:
    """Simulate the same requests at the times at which they were sent, with the same
    profile.
    """
    profile = load(DEFAULT_PROFILE)
    config = build_scheduler_config(SIM, profile)
    pool = SimulatedBlockPool(config.num_gpu_blocks)
    core = EngineCore(SimulatedScheduler(config, pool), profile.latency.compute_seconds)
    requests = [
        WorkloadRequest(each.id, each.arrival_s, each.input_tokens, each.output_tokens)
        for each in timings
    ]
    return replay(requests, [core], frontend_seconds=profile.frontend_seconds).timings


@pytest.mark.parametrize("dialect", ["completions", "chat"])
def test_measure_simulated_server_matches_profile_latencies(dialect: str) -> None:
    workload = generate_poisson(
        np.random.default_rng(0),
        count=40,
        rate=6.0,
        inputs=UniformLength(50, 400),
        outputs=UniformLength(20, 120),
    )
    result = measure(SIM, workload, Target("http://localhost", dialect=dialect))
    assert result.errors == ()
    assert {measurement.counted_by for measurement in result.measurements} == {"ids"}
    by_id = {measurement.timing.id: measurement for measurement in result.measurements}
    measured = [by_id[request.id].timing for request in workload]
    expected = {timing.id: timing for timing in simulate(measured)}
    assert [timing.output_tokens for timing in measured] == [
        request.output_tokens for request in workload
    ]
    for timing in measured:
        simulated = expected[timing.id]
        assert timing.ttft == pytest.approx(simulated.ttft, rel=0.02)
        assert timing.latency == pytest.approx(simulated.latency, rel=0.02)
        assert timing.tpot == pytest.approx(simulated.tpot, rel=0.02)
        # One arrival per token: no tokens are merged, and no gap is lost.
        assert len(by_id[timing.id].gaps) == timing.output_tokens - 1


def test_measure_closed_loop_limits_concurrency() -> None:
    workload = [WorkloadRequest(f"r{index}", 0.0, 20, 10) for index in range(9)]
    result = measure(SIM, workload, Target("http://localhost"), concurrency=3)
    timings = [measurement.timing for measurement in result.measurements]
    assert len(timings) == 9
    assert count_peak(timings) == 3
    in_order = sorted(timings, key=lambda timing: timing.arrival_s)
    ends = sorted(timing.last_token_s for timing in timings)
    # The fourth request is sent when the first one has its response, and so on.
    for index, timing in enumerate(in_order[3:]):
        assert timing.arrival_s >= ends[index]


STREAMS: dict[str, list[str]] = {
    "completions": [
        'data: {"choices":[{"index":0,"text":"a","token_ids":[5]}]}',
        ": keepalive",
        'data: {"choices":[{"index":0,"text":"","token_ids":[6]}]}',
        'data: {"choices":[{"index":0,"text":"bc","token_ids":[7,8]}]}',
        'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}',
        "data: [DONE]",
    ],
    "chat": [
        'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
        'data: {"choices":[{"index":0,"delta":{"reasoning_content":"a"}}]}',
        'data: {"choices":[{"index":0,"delta":{"content":"b"}}]}',
        'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,'
        '"function":{"arguments":"{"}}]}}]}',
        'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}',
        "data: [DONE]",
    ],
    "responses": [
        'data: {"type":"response.created","response":{"usage":null,"error":null}}',
        'data: {"type":"response.reasoning_text.delta","delta":"a"}',
        'data: {"type":"response.output_text.delta","delta":"b"}',
        'data: {"type":"response.output_text.delta","delta":"c"}',
        'data: {"type":"response.completed","response":{"error":null,'
        '"usage":{"input_tokens":3,"output_tokens":4}}}',
        "data: [DONE]",
    ],
    "messages": [
        'data: {"type":"message_start","message":{"usage":{"input_tokens":1,'
        '"cache_read_input_tokens":2}}}',
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta",'
        '"thinking":"a"}}',
        'data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"b"}}',
        'data: {"type":"content_block_delta","index":2,'
        '"delta":{"type":"input_json_delta","partial_json":"{"}}',
        'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        '"usage":{"output_tokens":4}}',
        'data: {"type":"message_stop"}',
    ],
    "ollama": [
        '{"message":{"role":"assistant","content":""},"done":false}',
        '{"message":{"role":"assistant","content":"","thinking":"a"},"done":false}',
        '{"message":{"role":"assistant","content":"b"},"done":false}',
        '{"message":{"role":"assistant","content":"c"},"done":false}',
        '{"message":{"role":"assistant","content":""},"done":true,"prompt_eval_count":3,"eval_count":4}',
        "",
    ],
}


def measure_stream(dialect: str, lines: Sequence[str], sent_at: float = 1.0) -> Measurement:
    """Measure a stream whose events arrive at intervals of half a second."""
    meter = StreamMeter(DIALECTS[dialect])
    for index, line in enumerate(lines):
        for event in SseDecoder().feed(f"{line}\n\n".encode()):
            meter.feed(event, sent_at + 0.5 * (index + 1))
    return meter.finish("r", sent_at)


@pytest.mark.parametrize("dialect", STREAMS)
def test_meter_recorded_stream_returns_times_and_counts(dialect: str) -> None:
    measured = measure_stream(dialect, STREAMS[dialect])
    timing = measured.timing
    assert (timing.input_tokens, timing.output_tokens) == (3, 4)
    if dialect == "completions":
        # A token without text counts too, and two that arrive together are one arrival.
        assert (timing.ttft, timing.latency, measured.gaps) == (0.5, 2.0, (1.0, 0.5))
        assert measured.counted_by == "ids"
    else:
        assert (timing.ttft, timing.latency, measured.gaps) == (1.0, 2.0, (0.5, 0.5))
        assert measured.counted_by == "usage"


@pytest.mark.parametrize(
    ("dialect", "line"),
    [
        ("completions", 'data: {"error":{"message":"gone"}}'),
        ("messages", 'data: {"type":"error","error":{"type":"api_error","message":"gone"}}'),
        (
            "responses",
            'data: {"type":"response.failed","response":{"error":{"code":"server_error",'
            '"message":"gone"}}}',
        ),
        ("ollama", '{"error":"gone"}'),
    ],
)
def test_meter_stream_error_raises_log_error(dialect: str, line: str) -> None:
    with pytest.raises(LogError, match="gone"):
        measure_stream(dialect, [*STREAMS[dialect][:3], line])


def test_meter_stream_without_usage_raises_log_error() -> None:
    with pytest.raises(LogError, match="no usage"):
        measure_stream("chat", STREAMS["chat"][:4])


def test_bench_report_has_percentiles_goodput_and_concurrency() -> None:
    timings = tuple(
        Timing(f"r{index}", index * 1.0, index + 0.5, index + 0.5 + index, 10, 5)
        for index in range(4)
    )
    report = build_bench_report(Run("a", timings, (0.1, 0.3), 2), Slo(ttft=1.0, latency=2.0))
    assert (report.requests, report.failed, report.duration, report.peak_concurrency) == (
        4,
        2,
        6.5,
        2,
    )
    assert report.ttft == summarize([0.5] * 4)
    assert report.itl == summarize([0.1, 0.3])
    assert (report.good, report.goodput) == (2, 2 / 6.5)
    assert report.output_token_rate == 20 / 6.5


@pytest.fixture(scope="module")
def tiny() -> Any:
    with serve_app(build_asgi_app(build_models(Settings(), SystemClock()))) as url:
        yield url


LOAD = (
    "--num-prompts",
    "6",
    "--request-rate",
    "500",
    "--input-len",
    "4",
    "--output-len",
    "3-5",
    "--seed",
    "7",
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_bench_measures_every_dialect(tiny: str, dialect: str) -> None:
    result = json.loads(
        get_output(
            "bench", tiny, "poisson", *LOAD, "--dialect", dialect, "--json", "--slo", "ttft:600000"
        )
    )
    assert (result["server"], result["model"], result["dialect"], result["loop"]) == (
        tiny,
        "tiny",
        dialect,
        "open",
    )
    report = result["report"]
    assert (report["requests"], report["failed"], report["good"]) == (6, 0, 6)
    assert report["counted_by"] == ("ids" if dialect in ("completions", "chat") else "usage")
    assert 0 < report["ttft"]["mean"] <= report["latency"]["mean"]


def test_bench_log_is_readable_by_other_commands(tiny: str, tmp_path: Path) -> None:
    load = (*LOAD[2:], "--num-prompts", "24")
    before = tmp_path / "before.jsonl"
    after = tmp_path / "after.jsonl"
    plot = tmp_path / "plot.svg"
    output = get_output(
        "bench", tiny, *load, "--concurrency", "2", "--warmup", "2", "--save-detailed", str(before)
    )
    assert "completions, closed, 2 clients loop" in output
    assert "0 failed" in output
    assert "counted by the ids that the server returns" in output
    run = read_run("before", before.read_bytes())
    assert (len(run.timings), run.counted_by, run.timings[0].arrival_s) == (24, "ids", 0.0)
    assert len(run.gaps) <= sum(timing.output_tokens - 1 for timing in run.timings)
    calibrated = get_output(
        "calibrate",
        str(before),
        "--no-spread",
        "--fit-requests",
        "20",
        "--out",
        str(tmp_path / "mine.yaml"),
    )
    assert "fitted on 20 requests, evaluated on the other 4" in calibrated
    assert "requests         24 in" in get_output(
        "simulate", str(before), "--profile", str(tmp_path / "mine.yaml")
    )
    planned = get_output(
        *(
            "plan",
            str(before),
            "--slo",
            "p99 ttft < 1s",
            "--gpus",
            "h100-sxm:2.5",
            "--model",
            "Qwen/Qwen3-8B",
        ),
        *("--tp", "1"),
    )
    assert "h100-sxm" in planned
    get_output("bench", tiny, *load, "--save-detailed", str(after), "--plots", str(plot))
    assert "<svg" in plot.read_text()
    compared = get_output(
        "bench", "--compare", str(before), str(after), "--slo", "ttft:600000"
    ).splitlines()
    assert compared[0].split() == ["before.jsonl", "after.jsonl", "change"]
    assert {line[:20].strip() for line in compared[1:]} >= {
        "TTFT p99, ms",
        "ITL mean, ms",
        "goodput, requests/s",
    }
    pair = json.loads(get_output("bench", "--compare", str(before), str(after), "--json"))
    assert (pair["before"]["requests"], pair["after"]["requests"]) == (24, 24)


def test_bench_reports_and_excludes_failed_requests(tiny: str, tmp_path: Path) -> None:
    # Two of the trace are longer than the model's context.
    trace = "\n".join(
        json.dumps(
            {
                "id": f"r{index}",
                "arrival_s": 0,
                "input_tokens": 60000 if index < 2 else 4,
                "output_tokens": 2,
            }
        )
        for index in range(5)
    )
    path = tmp_path / "trace.jsonl"
    path.write_text(trace)
    result = call("bench", tiny, str(path), "--warmup", "0")
    assert result.exit_code == 0, result.stderr
    assert "Warning: 2 requests failed; the first error: 400" in result.stderr
    assert "requests         3 in" in result.stdout
    assert "2 failed" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://localhost:1", "--num-prompts", "1"), "cannot list its models"),
        (("http://localhost:1", "poisson", "more"), "expected URL and TRACE"),
        (("http://localhost:1", "--dialect", "chatt"), "must be one of completions, chat"),
        (("http://localhost:1", "poison"), "did you mean poisson?"),
        (("http://localhost:1", "--slo", "ttft"), "is not NAME:MILLISECONDS"),
        (("http://localhost:1", "--plots", "x.gif"), "must end in one of"),
        (("--compare", "one.jsonl"), "takes exactly two logs"),
        (("--compare", "absent.jsonl", "absent.jsonl"), "No such file"),
    ],
)
def test_bench_invalid_arguments_print_one_line_error(
    arguments: tuple[str, ...], message: str
) -> None:
    assert message in get_error("bench", *arguments)
