"""GuideLLM's benchmarks.json (0.2 and later: `guidellm benchmark ... --output-path benchmarks.json`). Pure.

{"benchmarks": [{"requests": {"successful": [...], "incomplete": [...], "errored": [...]}}]}. A file with several
benchmarks (a sweep) is one log: they ran one after the other, on one clock. Times are in seconds since 1970.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import LogError, MeasuredLog, build_log

FORMAT = "guidellm"


class _Timings(Struct):
    """Timings of a request. first_iteration, last_iteration: of GuideLLM 0.3 and 0.4."""

    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    first_iteration: float | None = None
    last_iteration: float | None = None


class _Info(Struct):
    timings: _Timings = msgspec.field(default_factory=_Timings)


class _Item(Struct):
    """A request. start_time, first_token_time, last_token_time: of GuideLLM 0.2."""

    request_id: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    info: _Info | None = None
    start_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None


class _Requests(Struct):
    successful: list[_Item] = []
    incomplete: list[msgspec.Raw] = []
    errored: list[msgspec.Raw] = []


class _Benchmark(Struct):
    requests: _Requests = msgspec.field(default_factory=_Requests)


class _File(Struct):
    benchmarks: list[_Benchmark]


def matches_format(data: bytes) -> bool:
    return b'"benchmarks"' in data and b'"successful"' in data


def read(data: bytes) -> MeasuredLog:
    """Raises LogError."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise LogError(f"{FORMAT}: {error}") from None
    requests = [benchmark.requests for benchmark in file.benchmarks]
    items = [item for group in requests for item in group.successful]
    timings = [timing for index, item in enumerate(items) if (timing := _build_timing(index, item)) is not None]
    if items and not timings:
        raise LogError(f"{FORMAT}: no request has times of its tokens and counts; were the answers streamed?")
    skipped = len(items) - len(timings) + sum(len(group.incomplete) + len(group.errored) for group in requests)
    return build_log(FORMAT, timings, skipped=skipped)


def _build_timing(index: int, item: _Item) -> Timing | None:
    recorded = item.info.timings if item.info is not None else _Timings()
    start = _first_known(recorded.request_start, item.start_time)
    first = _first_known(recorded.first_token_iteration, recorded.first_iteration, item.first_token_time)
    last = _first_known(recorded.last_token_iteration, recorded.last_iteration, item.last_token_time)
    if start is None or first is None or last is None or not item.prompt_tokens or not item.output_tokens:
        return None
    return Timing(item.request_id or f"r{index}", start, first, last, item.prompt_tokens, item.output_tokens)


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
