"""AIPerf's profile_export.jsonl (0.2 and later: one record per request, `--export-level
records`, the default).
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..request_timing import Timing
from .measured_log import LogError, MeasuredLog, build_log

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
