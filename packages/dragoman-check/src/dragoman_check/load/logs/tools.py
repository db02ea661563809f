"""Readers of the result files of benchmark tools and of recordings; `read_any` detects
the format from the content.
"""

from __future__ import annotations

import base64
import codecs
from typing import Literal

import msgspec
from msgspec import Struct

from ..workload import Timing
from . import table
from .log import LogError, MeasuredLog, StreamTimings, build_log, join_logs

# AIPerf's profile_export.jsonl (0.2 and later: one record per request, `--export-level
# records`, the default).

_AIPERF = "aiperf"
_SECONDS_PER_UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


class _AiPerfMetadata(Struct):
    """Metadata of a record.

    credit_phase: former name of benchmark_phase.
    """

    request_start_ns: int | None = None
    benchmark_phase: str | None = None
    credit_phase: str | None = None
    x_request_id: str | None = None
    was_cancelled: bool = False


class _AiPerfMetric(Struct):
    value: float
    unit: str = "ms"

    @property
    def seconds(self) -> float:
        if self.unit not in _SECONDS_PER_UNIT:
            raise LogError(f"{_AIPERF}: unknown unit of time {self.unit!r}")
        return self.value * _SECONDS_PER_UNIT[self.unit]


class _AiPerfMetrics(Struct):
    time_to_first_token: _AiPerfMetric | None = None
    request_latency: _AiPerfMetric | None = None
    input_sequence_length: _AiPerfMetric | None = None
    output_sequence_length: _AiPerfMetric | None = None


class _AiPerfRecord(Struct):
    metadata: _AiPerfMetadata
    metrics: _AiPerfMetrics
    error: msgspec.Raw = msgspec.Raw(b"null")


def is_aiperf(data: bytes) -> bool:
    first = data.lstrip().partition(b"\n")[0]
    return b'"metadata"' in first and b'"metrics"' in first


def read_aiperf(data: bytes) -> MeasuredLog:
    """Read an AIPerf export. Raises LogError."""
    decoder = msgspec.json.Decoder(_AiPerfRecord)
    timings: list[Timing] = []
    skipped = 0
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise LogError(f"{_AIPERF}, line {number}: {error}") from None
        if (record.metadata.benchmark_phase or record.metadata.credit_phase) == "warmup":
            continue
        if bytes(record.error) != b"null" or record.metadata.was_cancelled:
            skipped += 1
            continue
        metrics = record.metrics
        start = record.metadata.request_start_ns
        ttft = metrics.time_to_first_token
        latency = metrics.request_latency
        inputs = metrics.input_sequence_length
        outputs = metrics.output_sequence_length
        if start is None or ttft is None or latency is None or inputs is None or outputs is None:
            raise LogError(
                f"{_AIPERF}, line {number}: request_start_ns, time_to_first_token, "
                f"request_latency, "
                "input_sequence_length or output_sequence_length is missing; run it with "
                "--streaming"
            )
        at = start / 1e9
        id = record.metadata.x_request_id or f"r{number}"
        timings.append(
            Timing(
                id,
                at,
                at + ttft.seconds,
                at + latency.seconds,
                int(inputs.value),
                int(outputs.value),
            )
        )
    return build_log(_AIPERF, timings, skipped=skipped)


# GenAI-Perf's profile export (0.0.8 and later: `--profile-export-file my.json`,
# streamed chat or completions).

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
            stream.feed(at / 1e9, output.response)
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


# GuideLLM's benchmarks.json (0.2 and later: `guidellm benchmark ... --output-path
# benchmarks.json`).

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


# The result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.11 and
# later).

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


# Recordings of `dragoman record`, of which only streamed chats and completions are
# read.

_RECORDING = "recording"
_RECORDED_PATHS = ("/chat/completions", "/completions")


class _RecordingBase64(Struct):
    base64: str


class _RecordingPiece(Struct, array_like=True):
    at: float
    data: str | _RecordingBase64

    @property
    def raw(self) -> bytes:
        return (
            self.data.encode() if isinstance(self.data, str) else base64.b64decode(self.data.base64)
        )


class _RecordingExchange(Struct):
    at: float
    path: str
    status: int
    pieces: list[_RecordingPiece]
    ended: Literal["complete", "cut", "left"]


def is_recording(data: bytes) -> bool:
    return b'"dragoman_recording"' in data[:40]


def read_recording(data: bytes) -> MeasuredLog:
    """Read a recording. A file that was appended to has several runs, each with its own
    clock. Raises LogError.
    """
    runs: list[list[tuple[int, _RecordingExchange]]] = []
    decoder = msgspec.json.Decoder(_RecordingExchange)
    for number, line in enumerate(data.splitlines(), start=1):
        if is_recording(line):
            runs.append([])
        elif line.strip():
            try:
                exchange = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise LogError(f"{_RECORDING}, line {number}: {error}") from None
            if exchange.path.endswith(_RECORDED_PATHS):
                runs[-1].append((number, exchange))
    return join_logs(
        [_build_recording_log(run) for run in runs if run] or [_build_recording_log([])]
    )


def _build_recording_log(exchanges: list[tuple[int, _RecordingExchange]]) -> MeasuredLog:
    complete = [
        (number, exchange)
        for number, exchange in exchanges
        if exchange.status == 200 and exchange.ended == "complete"
    ]
    timings: list[Timing] = []
    for number, exchange in complete:
        stream = StreamTimings(f"{_RECORDING}, line {number}")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        partial_line = ""
        for piece in exchange.pieces:
            lines, _, partial_line = (partial_line + decoder.decode(piece.raw)).rpartition("\n")
            stream.feed(exchange.at + piece.at, lines)
        usage = stream.usage
        token_times = stream.token_times
        if usage is not None and token_times:
            counts = (usage.prompt_tokens, usage.completion_tokens)
            timings.append(
                Timing(f"line{number}", exchange.at, token_times[0], token_times[-1], *counts)
            )
    if complete and not timings:
        raise LogError(
            f"{_RECORDING}: no response is streamed with usage; record with "
            f"stream_options.include_usage"
        )
    return build_log(_RECORDING, timings, skipped=len(exchanges) - len(timings))


# Detection of the format.

UNITS = tuple(table.UNITS)

_TOOLS = (
    (is_recording, read_recording),
    (is_vllm_bench, read_vllm_bench),
    (is_guidellm, read_guidellm),
    (is_genai_perf, read_genai_perf),
    (is_aiperf, read_aiperf),
)


def read_any(data: bytes, *, unit: str = "s") -> MeasuredLog:
    """Read a log of any supported format.

    unit: unit of times in a table whose column names do not state it.

    Raises:
        LogError: the log is invalid, or of an unknown format.
    """
    if unit not in table.UNITS:
        raise LogError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
    # Tools' formats first: their files are JSON too, and would be mistaken for tables.
    for matches_format, read in _TOOLS:
        if matches_format(data):
            return read(data)
    begin = data.lstrip()[:1]
    if begin not in (b"{", b"["):
        return table.read_csv(data, unit)
    if begin == b"{":
        first_line, _, further_lines = data.lstrip().partition(b"\n")
        try:
            first_row: dict[str, object] | None = msgspec.json.decode(
                first_line, type=dict[str, object]
            )
        except msgspec.MsgspecError:
            first_row = None
        # JSON Lines if the first line is a complete object, and more lines follow or it
        # is a single request.
        if first_row is not None and (
            further_lines.strip()
            or not any(isinstance(value, list) for value in first_row.values())
        ):
            return table.read_json_lines(data, unit)
    try:
        return table.read_json(data, unit)
    except msgspec.MsgspecError as error:
        raise LogError(f"this is not valid JSON: {error}") from None
