"""The result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.11 and
later).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..request_timing import Timing
from .measured_log import LogError, MeasuredLog, build_log

_VLLM_BENCH = "vllm bench serve"


class _VllmBenchResult(Struct):
    input_lens: list[int]
    ttfts: list[float] | None = None
    output_lens: list[int] | None = None
    itls: list[list[float]] | None = None
    start_times: list[float] | None = None
    errors: list[str] | None = None


def is_vllm_bench(data: bytes) -> bool:
    """Whether this is a result of vLLM's benchmark, including summaries: their error
    names `--save-detailed`.
    """
    return b'"request_throughput"' in data[:20_000] and b'"total_input_tokens"' in data[:20_000]


def read_vllm_bench(data: bytes) -> MeasuredLog:
    """Read a result of vLLM's benchmark. Raises LogError."""
    if b'"input_lens"' not in data:
        raise LogError(
            f"{_VLLM_BENCH}: the file has no individual requests; run it again with --save-detailed"
        )
    try:
        result = msgspec.json.decode(data, type=_VllmBenchResult)
    except msgspec.MsgspecError as error:
        raise LogError(f"{_VLLM_BENCH}: {error}") from None
    if result.start_times is None:
        raise LogError(f"{_VLLM_BENCH}: start_times are missing; vLLM 0.11 and later write them")
    if result.ttfts is None or result.itls is None or result.output_lens is None:
        raise LogError(
            f"{_VLLM_BENCH}: ttfts, itls or output_lens are missing; run it again with "
            f"--save-detailed"
        )
    columns = (result.start_times, result.ttfts, result.itls, result.input_lens, result.output_lens)
    if len({len(column) for column in columns}) != 1:
        raise LogError(
            f"{_VLLM_BENCH}: start_times, ttfts, itls, input_lens and output_lens differ in length"
        )
    errors = result.errors or [""] * len(result.start_times)
    timings = [
        Timing(f"r{index}", start, start + ttft, start + ttft + sum(gaps), inputs, outputs)
        for index, ((start, ttft, gaps, inputs, outputs), error) in enumerate(
            zip(zip(*columns, strict=True), errors, strict=False)
        )
        if not error and outputs
    ]
    return build_log(_VLLM_BENCH, timings, skipped=len(result.start_times) - len(timings))
