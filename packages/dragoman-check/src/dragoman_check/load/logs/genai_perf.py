"""GenAI-Perf's profile export (0.0.8 and later: `--profile-export-file my.json`,
streamed chat or completions).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..request_timing import Timing
from .measured_log import LogError, MeasuredLog, build_log
from .stream_timings import StreamTimings

_GENAI_PERF = "genai-perf"


class _GenAiPerfOutput(Struct):
    response: str = ""


class _GenAiPerfRequest(Struct):
    timestamp: int
    response_timestamps: list[int] = []
    response_outputs: list[_GenAiPerfOutput] = []


class _GenAiPerfExperiment(Struct):
    requests: list[_GenAiPerfRequest]


class _GenAiPerfFile(Struct):
    experiments: list[_GenAiPerfExperiment]


def is_genai_perf(data: bytes) -> bool:
    return b'"experiments"' in data and b'"response_timestamps"' in data


def read_genai_perf(data: bytes) -> MeasuredLog:
    """Read a GenAI-Perf export. Raises LogError."""
    try:
        file = msgspec.json.decode(data, type=_GenAiPerfFile)
    except msgspec.MsgspecError as error:
        raise LogError(f"{_GENAI_PERF}: {error}") from None
    if len(file.experiments) != 1:
        raise LogError(
            f"{_GENAI_PERF}: {len(file.experiments)} experiments in one file; expected one"
        )
    requests = file.experiments[0].requests
    timings: list[Timing] = []
    for index, request in enumerate(requests):
        stream = StreamTimings(_GENAI_PERF)
        for at, output in zip(request.response_timestamps, request.response_outputs, strict=False):
            # Some versions record whole events, others only their data.
            stream.feed(at / 1e9, output.response.encode() + b"\n\n")
        token_times = stream.token_times
        usage = stream.usage
        if not token_times:
            continue
        if usage is None:
            raise LogError(
                f"{_GENAI_PERF}: request {index}: its response has no usage, so its tokens cannot "
                f"be counted; "
                """run it with --extra-inputs stream_options:'{"include_usage":true}'"""
            )
        counts = (usage.prompt_tokens, usage.completion_tokens)
        timings.append(
            Timing(f"r{index}", request.timestamp / 1e9, token_times[0], token_times[-1], *counts)
        )
    return build_log(_GENAI_PERF, timings, skipped=len(requests) - len(timings))
