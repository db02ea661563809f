"""The same four requests in the log format of each tool: written from the tools'
sources, not measured.
"""

from __future__ import annotations

import json
from typing import Any

ARRIVALS = (0.0, 0.5, 1.25, 2.0)
TTFT = 0.125
GAP = 0.0625
COUNTS = ((10, 3), (200, 2), (33, 1), (7, 5))
"""Numbers of prompt and output tokens."""
T0 = 1_760_000_000.0


def first_token_at(index: int) -> float:
    return ARRIVALS[index] + TTFT


def last_token_at(index: int) -> float:
    return first_token_at(index) + GAP * (COUNTS[index][1] - 1)


def vllm_bench(**changes: Any) -> bytes:
    """Return a result of vLLM 0.11's `vllm bench serve --save-result
    --save-detailed`.
    """
    result: dict[str, Any] = {
        "date": "20251009-120000",
        "endpoint_type": "openai",
        "model_id": "meta-llama/Llama-3.1-8B",
        "num_prompts": 4,
        "request_rate": 2.0,
        "burstiness": 1.0,
        "duration": 3.0,
        "completed": 4,
        "total_input_tokens": 250,
        "total_output_tokens": 11,
        "request_throughput": 1.33,
        "request_goodput": None,
        "output_throughput": 3.6,
        "total_token_throughput": 87.0,
        "input_lens": [inputs for inputs, _ in COUNTS],
        "output_lens": [outputs for _, outputs in COUNTS],
        "ttfts": [TTFT] * 4,
        "itls": [[GAP] * (outputs - 1) for _, outputs in COUNTS],
        "start_times": [77.0 + at for at in ARRIVALS],
        "generated_texts": ["..."] * 4,
        "errors": [""] * 4,
        "mean_ttft_ms": 125.0,
    }
    return json.dumps(result | changes).encode()


def guidellm(version: str = "0.5") -> bytes:
    """Return a result of `guidellm benchmark --output-path benchmarks.json`."""
    items = [_guidellm_item(index, version) for index in range(4)]
    requests = {
        "successful": items,
        "incomplete": [{"request_id": "cut"}],
        "errored": [],
        "total": None,
    }
    return json.dumps(
        {"metadata": {"version": 1}, "benchmarks": [{"type_": "x", "requests": requests}]}
    ).encode()


def _guidellm_item(index: int, version: str) -> dict[str, Any]:
    inputs, outputs = COUNTS[index]
    item = {"request_id": f"q{index}", "prompt_tokens": inputs, "output_tokens": outputs}
    start = T0 + ARRIVALS[index]
    begin = T0 + first_token_at(index)
    end = T0 + last_token_at(index)
    match version:
        case "0.2":
            return {**item, "start_time": start, "first_token_time": begin, "last_token_time": end}
        case "0.3":
            times = {"request_start": start, "first_iteration": begin, "last_iteration": end}
        case _:
            times = {
                "request_start": start,
                "first_token_iteration": begin,
                "last_token_iteration": end,
            }
    return {**item, "info": {"request_id": f"q{index}", "status": "completed", "timings": times}}


def aiperf(phase: str = "benchmark_phase") -> bytes:
    """Return AIPerf's profile_export.jsonl."""
    records = [_aiperf_record(index, {phase: "profiling"}) for index in range(4)]
    warmup = _aiperf_record(0, {phase: "warmup"})
    failed = {
        "metadata": {"request_start_ns": 5},
        "metrics": {},
        "error": {"code": 500, "message": "no"},
    }
    return b"\n".join(json.dumps(record).encode() for record in (warmup, *records, failed))


def _aiperf_record(index: int, metadata: dict[str, Any]) -> dict[str, Any]:
    inputs, outputs = COUNTS[index]
    return {
        "metadata": {
            "session_num": index,
            "x_request_id": f"q{index}",
            "request_start_ns": int((T0 + ARRIVALS[index]) * 1e9),
            "request_end_ns": int((T0 + last_token_at(index)) * 1e9),
            "worker_id": "0",
            "was_cancelled": False,
            **metadata,
        },
        "metrics": {
            "time_to_first_token": {"value": TTFT * 1000, "unit": "ms"},
            "inter_token_latency": {"value": GAP * 1000, "unit": "ms"},
            "request_latency": {
                "value": (last_token_at(index) - ARRIVALS[index]) * 1000,
                "unit": "ms",
            },
            "input_sequence_length": {"value": inputs, "unit": "tokens"},
            "output_sequence_length": {"value": outputs, "unit": "tokens"},
        },
        "error": None,
    }


def genai_perf(*, usage: bool = True) -> bytes:
    """Return GenAI-Perf's profile export of a streamed chat."""
    requests = [_genai_perf_request(index, usage=usage) for index in range(4)]
    experiment = {
        "experiment": {"mode": "request_rate", "value": 2.0},
        "requests": requests,
        "window_boundaries": [],
    }
    return json.dumps(
        {"service_kind": "openai", "endpoint": "v1/chat", "experiments": [experiment]}
    ).encode()


def _genai_perf_request(index: int, *, usage: bool) -> dict[str, Any]:
    inputs, outputs = COUNTS[index]
    start = T0 + ARRIVALS[index]
    moments = [first_token_at(index) + GAP * token for token in range(outputs)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    ]
    chunks += [{"choices": [{"index": 0, "delta": {"content": "x"}}]} for _ in moments]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    times = [first_token_at(index) - 0.01, *moments, last_token_at(index) + 0.01]
    if usage:
        chunks.append(
            {"choices": [], "usage": {"prompt_tokens": inputs, "completion_tokens": outputs}}
        )
        times.append(times[-1])
    return {
        "timestamp": int(start * 1e9),
        "request_inputs": {"payload": json.dumps({"messages": []})},
        "response_timestamps": [int((T0 + at) * 1e9) for at in times],
        "response_outputs": [{"response": f"data: {json.dumps(chunk)}\n\n"} for chunk in chunks],
    }


def recording(*, usage: bool = True) -> bytes:
    """Return a recording of `dragoman record`, with pieces as they arrived from the
    network.
    """
    lines: list[dict[str, Any]] = [{"dragoman_recording": 1, "upstream": "http://gpu-box"}]
    lines.append({**_exchange(0, usage=usage), "path": "/v1/models"})
    lines += [_exchange(index, usage=usage) for index in range(4)]
    lines.append({**_exchange(0, usage=usage), "ended": "cut"})
    return b"\n".join(json.dumps(line).encode() for line in lines)


def _exchange(index: int, *, usage: bool) -> dict[str, Any]:
    request = _genai_perf_request(index, usage=usage)
    begin = ARRIVALS[index]
    pieces: list[list[Any]] = []
    for at, output in zip(request["response_timestamps"], request["response_outputs"], strict=True):
        event = output["response"]
        pieces += [[at / 1e9 - T0 - begin - 0.001, event[:20]], [at / 1e9 - T0 - begin, event[20:]]]
    rest = {"status": 200, "pieces": pieces, "head_at": 0.1, "end_at": 9.0, "ended": "complete"}
    return {"at": begin, "method": "POST", "path": "/v1/chat/completions", "body": "{}", **rest}


def bench_log() -> bytes:
    """Return a log of `dragoman bench` with two requests, the first with shared blocks."""
    first_request = {
        "id": "r0",
        "arrival_s": 0.0,
        "scheduled_s": 0.001865,
        "first_token_s": 0.125,
        "last_token_s": 0.25,
        "input_tokens": 16,
        "output_tokens": 3,
        "block_hashes": ["4d504032553d"],
        "block_size": 16,
    }
    second_request = {**first_request, "id": "r1", "block_hashes": []}
    return b"\n".join(json.dumps(line).encode() for line in (first_request, second_request))


def rows() -> list[dict[str, Any]]:
    return [
        {
            "request_id": f"q{index}",
            "start_time": T0 + ARRIVALS[index],
            "ttft_ms": TTFT * 1000,
            "e2e_latency_ms": (last_token_at(index) - ARRIVALS[index]) * 1000,
            "prompt_tokens": COUNTS[index][0],
            "completion_tokens": COUNTS[index][1],
        }
        for index in range(4)
    ]


def table_csv() -> bytes:
    heading = ",".join(rows()[0])
    return "\n".join(
        [heading, *(",".join(str(value) for value in row.values()) for row in rows())]
    ).encode()


def table_json() -> bytes:
    return json.dumps(rows()).encode()


def table_columns() -> bytes:
    return json.dumps(
        {name: [row[name] for row in rows()] for name in rows()[0]} | {"seed": 1}
    ).encode()


def table_lines() -> bytes:
    return b"\n".join(json.dumps(row).encode() for row in rows())
