"""GenAI-Perf's profile export (0.0.8 and later: `--profile-export-file my.json`, streamed chat or completions). Pure.

{"experiments": [{"requests": [{"timestamp": NS, "response_timestamps": [NS, ...], "response_outputs":
[{"response": "data: {...}"}, ...]}]}]}. It has texts but no counts: they come from the server's usage, for which the
run needs `--extra-inputs stream_options:'{"include_usage":true}'`.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import LogError, MeasuredLog, StreamTimings, build_log

FORMAT = "genai-perf"


class _Output(Struct):
    response: str = ""


class _Request(Struct):
    timestamp: int
    response_timestamps: list[int] = []
    response_outputs: list[_Output] = []


class _Experiment(Struct):
    requests: list[_Request]


class _File(Struct):
    experiments: list[_Experiment]


def matches_format(data: bytes) -> bool:
    return b'"experiments"' in data and b'"response_timestamps"' in data


def read(data: bytes) -> MeasuredLog:
    """Raises LogError."""
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise LogError(f"{FORMAT}: {error}") from None
    if len(file.experiments) != 1:
        raise LogError(f"{FORMAT}: {len(file.experiments)} experiments in one file; expected one")
    requests = file.experiments[0].requests
    timings = [
        timing for index, request in enumerate(requests) if (timing := _build_timing(index, request)) is not None
    ]
    return build_log(FORMAT, timings, skipped=len(requests) - len(timings))


def _build_timing(index: int, request: _Request) -> Timing | None:
    stream = StreamTimings(FORMAT)
    for at, output in zip(request.response_timestamps, request.response_outputs, strict=False):
        stream.feed(at / 1e9, output.response)
    if not stream.token_times:
        return None
    if stream.usage is None:
        raise LogError(
            f"{FORMAT}: request {index}: its response has no usage, so its tokens cannot be counted; "
            """run it with --extra-inputs stream_options:'{"include_usage":true}'"""
        )
    at, usage = request.timestamp / 1e9, stream.usage
    return Timing(
        f"r{index}", at, stream.token_times[0], stream.token_times[-1], usage.prompt_tokens, usage.completion_tokens
    )
