"""The logs of all tools for the same requests are parsed to the same log; missing
columns are errors with a remedy.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dragoman_check.load.logs.log_reader import read_any
from dragoman_check.load.logs.measured_log import LogError, join_logs
from dragoman_check.load.logs.stream_timings import StreamTimings

from . import examples

LOGS: dict[str, Callable[[], bytes]] = {
    "vllm bench serve": examples.vllm_bench,
    "guidellm": examples.guidellm,
    "guidellm 0.2": lambda: examples.guidellm("0.2"),
    "guidellm 0.3": lambda: examples.guidellm("0.3"),
    "aiperf": examples.aiperf,
    "aiperf 0.1": lambda: examples.aiperf("credit_phase"),
    "genai-perf": examples.genai_perf,
    "recording": examples.recording,
    "CSV": examples.table_csv,
    "JSON": examples.table_json,
    "JSON of columns": examples.table_columns,
    "JSON Lines": examples.table_lines,
}


@pytest.mark.parametrize("tool", LOGS)
def test_read_log_all_formats_yield_same_requests(tool: str) -> None:
    log = read_any(LOGS[tool]())
    assert tool.startswith(log.format)
    assert [(timing.input_tokens, timing.output_tokens) for timing in log.timings] == list(
        examples.COUNTS
    )
    for index, timing in enumerate(log.timings):
        assert timing.arrival_s == pytest.approx(examples.ARRIVALS[index], abs=1e-5)
        assert timing.first_token_s == pytest.approx(examples.first_token_at(index), abs=1e-5)
        assert timing.last_token_s == pytest.approx(examples.last_token_at(index), abs=1e-5)
    assert [request.id for request in log.requests] == [timing.id for timing in log.timings]
    assert [request.output_tokens for request in log.requests] == [
        outputs for _, outputs in examples.COUNTS
    ]


def test_read_log_own_format_keeps_block_hashes() -> None:
    log = read_any(examples.bench_log())
    assert [request.block_hashes for request in log.requests] == [("4d504032553d",), ()]
    assert log.timings[0].scheduled_s == pytest.approx(0.001865)


def test_read_log_failed_requests_skipped_with_note() -> None:
    log = read_any(examples.vllm_bench(errors=["", "timeout", "", ""]))
    assert len(log.timings) == 3
    assert "1 requests failed" in log.notes[0]
    assert "1 requests failed" in read_any(examples.guidellm()).notes[0]
    assert "1 requests failed" in read_any(examples.aiperf()).notes[0]
    assert "1 requests failed" in read_any(examples.recording()).notes[0]


def test_join_logs_appends_runs_in_time() -> None:
    log = read_any(examples.table_csv())
    joined = join_logs([log, read_any(examples.aiperf())])
    assert joined.format == "CSV and aiperf"
    assert [timing.id for timing in joined.timings][3:5] == ["1/q3", "2/q0"]
    assert joined.timings[4].arrival_s > joined.timings[3].last_token_s + 1000
    assert joined.timings[4].ttft == pytest.approx(examples.TTFT)
    assert join_logs([log]) is log


def test_read_log_appended_recording_yields_separate_runs() -> None:
    log = read_any(examples.recording() + b"\n" + examples.recording())
    assert len(log.timings) == 8
    assert log.timings[4].arrival_s > log.timings[3].last_token_s + 1000


def test_read_log_unit_argument_sets_time_unit() -> None:
    csv = b"start,ttft,latency,isl,osl\n1000,125,250,10,3\n1500,125,250,10,3"
    assert read_any(csv, unit="ms").timings[1].arrival_s == pytest.approx(0.5)
    assert read_any(csv, unit="ms").timings[1].latency == pytest.approx(0.25)
    with pytest.raises(LogError, match="unit 'h'"):
        read_any(csv, unit="h")


def test_read_log_parses_timestamps_and_tpot() -> None:
    csv = (
        b"Start Time;TTFT (ms);TPOT (ms);Input Tokens;Output Tokens;error\n"
        b"2026-01-02T03:04:05.000+00:00;100;10;8;3;\n2026-01-02T03:04:06.500+00:00;100;10;8;3;\n"
        b"2026-01-02T03:04:07.000+00:00;;;;;timeout\n"
    )
    log = read_any(csv)
    assert [timing.arrival_s for timing in log.timings] == [0.0, 1.5]
    assert log.timings[0].latency == pytest.approx(0.12)


def test_duplicate_ids_are_distinguished() -> None:
    rows = [dict(row, request_id="same") for row in examples.rows()]
    assert len({timing.id for timing in read_any(json.dumps(rows).encode()).timings}) == 4


VLLM_RESULT = json.loads(examples.vllm_bench())
SUMMARY_ONLY = {name: value for name, value in VLLM_RESULT.items() if not isinstance(value, list)}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            json.dumps(SUMMARY_ONLY).encode(),
            "has no individual requests; run it again with --save-detailed",
        ),
        (
            examples.vllm_bench(start_times=None),
            "start_times are missing; vLLM 0.11 and later write them",
        ),
        (examples.vllm_bench(itls=None), "run it again with --save-detailed"),
        (examples.vllm_bench(ttfts=[1.0]), "differ in length"),
        (examples.vllm_bench(errors=["x"] * 4), "no successful request .4 failed"),
        (examples.genai_perf(usage=False), "no usage.*include_usage"),
        (examples.recording(usage=False), "record with stream_options.include_usage"),
        (
            examples.aiperf().replace(b"time_to_first_token", b"other"),
            "time_to_first_token.*--streaming",
        ),
        (examples.guidellm().replace(b"_token_iteration", b"_x"), "were the responses streamed"),
        (b"a,b\n1,2", "the columns a, b have no arrival"),
        (b'[{"start": 1, "isl": 1, "osl": 1, "latency": 1}]', r"have no first \(first_token"),
        (b"start,ttft,latency,isl,osl\n0,1,x,1,1", "request 0: latency: 'x' is not a number"),
        (b"start,ttft,latency,isl,osl\n0,1,,1,1", "request 0: a time is missing"),
        (b"start,ttft,latency,isl,osl\n0,3,2,1,1", "not in this order"),
        (b"start,ttft,latency,isl,osl\n0,1,2,0,1", "no tokens in its prompt"),
        (b"start,ttft,latency,isl,osl\n0,1000,9000,1,1", "milliseconds. Use --unit ms"),
        (b"start,ttft,latency,isl,osl\n0,nan,2,1,1", "not in this order"),
        (b"start,ttft,latency,isl,osl\n0,1,2,inf,1", "'inf' is not a count"),
        (b"hello", "neither JSON nor a CSV"),
        (b"\xff\xfe", "neither JSON nor a CSV"),
        (b"{broken", "not valid JSON"),
        (b"[1, 2]", "a request is an object"),
        (b"[]", "it does not contain any request"),
        (b"{}", "it does not contain any request"),
        (b'{"id": 1}\n{broken', "line 2"),
    ],
)
def test_missing_columns_are_named(data: bytes, message: str) -> None:
    with pytest.raises(LogError, match=message):
        read_any(data)


@pytest.mark.parametrize("form", ["data: %s\n\n", "%s"])
def test_genai_perf_text_with_line_separators_is_one_chunk(form: str) -> None:
    chunk = '{"choices":[{"index":0,"delta":{"content":"a\u2028b\x85c"}}]}'
    usage = '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    stream = StreamTimings("a log")
    for at, text in ((1.0, chunk), (1.5, chunk), (2.0, usage)):
        stream.feed(at, (form % text).encode() + b"\n\n")
    assert stream.token_times == [1.0, 1.5]
    assert stream.usage is not None
