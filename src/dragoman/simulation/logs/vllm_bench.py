"""The result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.11 and later). Pure.

Lists run in parallel, an entry a request: start_times, ttfts and itls in seconds (itls: a list a request), input_lens
and output_lens in tokens, errors as texts.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import LogError, MeasuredLog, build_log

FORMAT = "vllm bench serve"


class _Result(Struct):
    input_lens: list[int]
    ttfts: list[float] | None = None
    output_lens: list[int] | None = None
    itls: list[list[float]] | None = None
    start_times: list[float] | None = None
    errors: list[str] | None = None


def matches_format(data: bytes) -> bool:
    """Also matches summaries without details, so that the error can name `--save-detailed`."""
    return b'"request_throughput"' in data[:20_000] and b'"total_input_tokens"' in data[:20_000]


def read(data: bytes) -> MeasuredLog:
    """Raises LogError."""
    if b'"input_lens"' not in data:
        raise LogError(f"{FORMAT}: there are no single requests in it; run it again with --save-detailed")
    try:
        result = msgspec.json.decode(data, type=_Result)
    except msgspec.MsgspecError as error:
        raise LogError(f"{FORMAT}: {error}") from None
    if result.start_times is None:
        raise LogError(f"{FORMAT}: there are no start_times in it; they come with vLLM 0.11 and later")
    if result.ttfts is None or result.itls is None or result.output_lens is None:
        raise LogError(f"{FORMAT}: ttfts, itls or output_lens are missing; run it again with --save-detailed")
    columns = (result.start_times, result.ttfts, result.itls, result.input_lens, result.output_lens)
    if len({len(column) for column in columns}) != 1:
        raise LogError(f"{FORMAT}: start_times, ttfts, itls, input_lens and output_lens differ in length")
    errors = result.errors or [""] * len(result.start_times)
    timings = [
        Timing(f"r{index}", start, start + ttft, start + ttft + sum(gaps), inputs, outputs)
        for index, ((start, ttft, gaps, inputs, outputs), error) in enumerate(
            zip(zip(*columns, strict=True), errors, strict=False)
        )
        if not error and outputs
    ]
    return build_log(FORMAT, timings, skipped=len(result.start_times) - len(timings))
