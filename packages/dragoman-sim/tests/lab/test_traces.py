"""Public traces become workloads: their fields are used, and missing ones are reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dragoman_check.load.trace_file import encode_workload
from dragoman_check.load.trace_options import TraceOptions
from dragoman_check.load.trace_reader import read_trace
from dragoman_check.load.workload import WorkloadError, WorkloadRequest

TRACES = Path(__file__).parents[1] / "data/traces"
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
2023-11-16 18:17:03.9899600,7,1
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,0,0,0,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
SHAREGPT = """[{"id": "x", "conversations": [
  {"from": "human", "value": "0123456789012345678901234567890123456789012345678901234567890123"},
  {"from": "gpt", "value": "01234567"}, {"from": "human", "value": "0123"}, {"from": "gpt", "value": "0123"}]},
 {"id": "empty", "conversations": []},
 {"id": "y", "conversations": [{"from": "gpt", "value": "Welcome."}, {"from": "human", "value": "Hi"},
  {"from": "gpt", "value": "Hello, what can I do?"}]}]"""  # noqa: E501
VLLM_BENCH = """{"request_throughput": 1.0, "total_input_tokens": 30, "input_lens": [10, 20], "output_lens": [2, 1],
 "ttfts": [0.5, 0.25], "itls": [[0.1], []], "start_times": [100.0, 101.5], "errors": ["", ""]}"""  # noqa: E501


def read(
    text: str, options: TraceOptions | None = None
) -> tuple[Sequence[WorkloadRequest], tuple[str, ...]]:
    trace = read_trace(text.encode(), options or TraceOptions(), np.random.default_rng(1))
    return trace.requests, trace.notes


@pytest.mark.parametrize(
    ("name", "rows", "first", "last", "failed"),
    [
        ("azure-conversation-2023.csv", 287, (0.0, 374, 44), (80.183, 978, 442), 0),
        ("burstgpt.csv", 189, (0.0, 16, 421), (3259.0, 67, 58), 8),
        ("mooncake-conversation.jsonl", 131, (0.0, 6758, 500), (45.0, 2158, 604), 0),
    ],
)
def test_excerpts_of_published_traces_parse_unchanged(
    name: str,
    rows: int,
    first: tuple[float, int, int],
    last: tuple[float, int, int],
    failed: int,
) -> None:
    requests, notes = read((TRACES / name).read_text(encoding="utf-8"))
    assert len(requests) == rows
    assert bool(notes) == bool(failed)
    assert all(str(failed) in note for note in notes)
    for request, (arrival, inputs, outputs) in ((requests[0], first), (requests[-1], last)):
        assert request.arrival_s == pytest.approx(arrival, abs=0.001)
        assert (request.input_tokens, request.output_tokens) == (inputs, outputs)


def test_azure_trace_yields_times_and_token_counts() -> None:
    requests, _ = read(AZURE)
    assert [(each.input_tokens, each.output_tokens) for each in requests] == [
        (4808, 10),
        (7, 1),
        (110, 27),
    ]
    assert [each.arrival_s for each in requests] == pytest.approx([0.0, 0.01, 0.052])


def test_burstgpt_trace_skips_and_counts_failed_requests() -> None:
    requests, notes = read(BURSTGPT)
    assert [(each.arrival_s, each.input_tokens, each.output_tokens) for each in requests] == [
        (0, 472, 18),
        (113, 417, 276),
    ]
    assert "1 failed" in notes[0]


def test_sharegpt_trace_turns_continue_conversation() -> None:
    (first, second, other), notes = read(SHAREGPT)
    assert (first.input_tokens, first.output_tokens, first.after) == (16, 2, None)
    assert (second.input_tokens, second.output_tokens, second.after) == (19, 1, first.id)
    assert second.block_hashes[0] == first.block_hashes[0] != other.block_hashes
    assert other.input_tokens == 1
    assert other.arrival_s > first.arrival_s
    assert "no times" in notes[0]
    assert len(read(SHAREGPT, TraceOptions(max_requests=1))[0]) == 1


def test_benchmark_log_parses_as_workload() -> None:
    requests, _ = read(VLLM_BENCH)
    assert [(each.arrival_s, each.input_tokens, each.output_tokens) for each in requests] == [
        (0, 10, 2),
        (1.5, 20, 1),
    ]


def test_workload_and_mooncake_traces_parse_exactly() -> None:
    requests = [
        WorkloadRequest("a", 0.0, 40, 3, ("x", "y")),
        WorkloadRequest("b", 1.0, 2, 2, after="a"),
    ]
    assert read(encode_workload(requests))[0] == requests
    mooncake = (
        '{"timestamp": 2000, "input_length": 1025, "output_length": 3, "hash_ids": [1, 2, 3]}\n'
    )
    assert read(mooncake)[0] == [WorkloadRequest("line1", 2.0, 1025, 3, ("1", "2"), 512)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (AZURE.replace("110", "many"), "line 3.*ContextTokens"),
        (BURSTGPT.replace("118", "late"), "line 4.*Timestamp"),
        (SHAREGPT.replace('"0123"', "5"), "ShareGPT"),
        ('{"id": "a", "arrival_s": 0, "output_tokens": 2}', "input_tokens"),
        ("nothing", "neither JSON nor a CSV"),
    ],
)
def test_invalid_trace_error_names_location(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read(text)


def test_invalid_trace_raises_workload_error() -> None:
    with pytest.raises(WorkloadError):
        read(AZURE.replace("4808", ""))


@pytest.mark.parametrize(
    "row",
    [
        "1.0,ChatGPT,inf,5",
        "nan,ChatGPT,5,5",
        "inf,ChatGPT,5,5",
        "1.0,ChatGPT,5,99999999999999999999",
    ],
)
def test_invalid_trace_row_error_names_line(row: str) -> None:
    text = f"Timestamp,Model,Request tokens,Response tokens\n0.5,ChatGPT,3,4\n{row}\n"
    with pytest.raises(WorkloadError, match=r"line ?3"):
        read(text)
