"""AIPerf's profile_export.jsonl (0.2 and later: one record a request, `--export-level records`, its default). Pure.

{"metadata": {"request_start_ns": ..., "benchmark_phase": "profiling", "x_request_id": ...},
 "metrics": {"time_to_first_token": {"value": 45.5, "unit": "ms"}, "request_latency": ..., "input_sequence_length":
 ..., "output_sequence_length": ...}, "error": null}
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..timing import Timing
from .log import LogError, MeasuredLog, build_log

FORMAT = "aiperf"
_SECONDS_PER_UNIT = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


class _Metadata(Struct):
    """Metadata of a record. credit_phase: the older name of benchmark_phase."""

    request_start_ns: int | None = None
    benchmark_phase: str | None = None
    credit_phase: str | None = None
    x_request_id: str | None = None
    was_cancelled: bool = False


class _Metric(Struct):
    value: float
    unit: str = "ms"

    @property
    def seconds(self) -> float:
        if self.unit not in _SECONDS_PER_UNIT:
            raise LogError(f"{FORMAT}: times in {self.unit!r} are not known")
        return self.value * _SECONDS_PER_UNIT[self.unit]


class _Metrics(Struct):
    time_to_first_token: _Metric | None = None
    request_latency: _Metric | None = None
    input_sequence_length: _Metric | None = None
    output_sequence_length: _Metric | None = None


class _Record(Struct):
    metadata: _Metadata
    metrics: _Metrics
    error: msgspec.Raw = msgspec.Raw(b"null")


def matches_format(data: bytes) -> bool:
    first = data.lstrip().partition(b"\n")[0]
    return b'"metadata"' in first and b'"metrics"' in first


def read(data: bytes) -> MeasuredLog:
    """Raises LogError."""
    decoder = msgspec.json.Decoder(_Record)
    timings: list[Timing] = []
    skipped = 0
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise LogError(f"{FORMAT}, line {number}: {error}") from None
        if (record.metadata.benchmark_phase or record.metadata.credit_phase) == "warmup":
            continue
        if bytes(record.error) != b"null" or record.metadata.was_cancelled:
            skipped += 1
            continue
        timings.append(_build_timing(record, number))
    return build_log(FORMAT, timings, skipped=skipped)


def _build_timing(record: _Record, number: int) -> Timing:
    metrics, start = record.metrics, record.metadata.request_start_ns
    ttft, latency = metrics.time_to_first_token, metrics.request_latency
    inputs, outputs = metrics.input_sequence_length, metrics.output_sequence_length
    if start is None or ttft is None or latency is None or inputs is None or outputs is None:
        raise LogError(
            f"{FORMAT}, line {number}: request_start_ns, time_to_first_token, request_latency, input_sequence_length "
            "or output_sequence_length is missing; run it with --streaming"
        )
    at = start / 1e9
    id = record.metadata.x_request_id or f"r{number}"
    return Timing(id, at, at + ttft.seconds, at + latency.seconds, int(inputs.value), int(outputs.value))
