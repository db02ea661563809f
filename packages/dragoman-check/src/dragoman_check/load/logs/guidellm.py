"""GuideLLM's benchmarks.json (0.2 and later: `guidellm benchmark ... --output-path
benchmarks.json`).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..request_timing import Timing
from .measured_log import LogError, MeasuredLog, build_log

_GUIDELLM = "guidellm"


class _GuideLlmTimings(Struct):
    """Timings of a request.

    first_iteration, last_iteration: names in GuideLLM 0.3 and 0.4.
    """

    request_start: float | None = None
    first_token_iteration: float | None = None
    last_token_iteration: float | None = None
    first_iteration: float | None = None
    last_iteration: float | None = None


class _GuideLlmInfo(Struct):
    timings: _GuideLlmTimings = msgspec.field(default_factory=_GuideLlmTimings)


class _GuideLlmItem(Struct):
    """A request.

    start_time, first_token_time, last_token_time: names in GuideLLM 0.2.
    """

    request_id: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    info: _GuideLlmInfo | None = None
    start_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None


class _GuideLlmRequests(Struct):
    successful: list[_GuideLlmItem] = []
    incomplete: list[msgspec.Raw] = []
    errored: list[msgspec.Raw] = []


class _GuideLlmBenchmark(Struct):
    requests: _GuideLlmRequests = msgspec.field(default_factory=_GuideLlmRequests)


class _GuideLlmFile(Struct):
    benchmarks: list[_GuideLlmBenchmark]


def is_guidellm(data: bytes) -> bool:
    return b'"benchmarks"' in data and b'"successful"' in data


def read_guidellm(data: bytes) -> MeasuredLog:
    """Read a GuideLLM benchmark. Raises LogError."""
    try:
        file = msgspec.json.decode(data, type=_GuideLlmFile)
    except msgspec.MsgspecError as error:
        raise LogError(f"{_GUIDELLM}: {error}") from None
    requests = [benchmark.requests for benchmark in file.benchmarks]
    items = [item for group in requests for item in group.successful]
    timings: list[Timing] = []
    for index, item in enumerate(items):
        recorded = item.info.timings if item.info is not None else _GuideLlmTimings()
        start = _first_known(recorded.request_start, item.start_time)
        first = _first_known(
            recorded.first_token_iteration, recorded.first_iteration, item.first_token_time
        )
        last = _first_known(
            recorded.last_token_iteration, recorded.last_iteration, item.last_token_time
        )
        if (
            start is None
            or first is None
            or last is None
            or not item.prompt_tokens
            or not item.output_tokens
        ):
            continue
        id = item.request_id or f"r{index}"
        timings.append(Timing(id, start, first, last, item.prompt_tokens, item.output_tokens))
    if items and not timings:
        raise LogError(
            f"{_GUIDELLM}: no request has token times and counts; were the responses streamed?"
        )
    skipped = (
        len(items)
        - len(timings)
        + sum(len(group.incomplete) + len(group.errored) for group in requests)
    )
    return build_log(_GUIDELLM, timings, skipped=skipped)


def _first_known(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
