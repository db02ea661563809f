"""OTLP's messages in protobuf's wire format: https://github.com/open-telemetry/opentelemetry-proto, v1.

Only what is sent here: spans, and cumulative histograms. The field numbers are those of the .proto files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ..core.metrics import Histogram
from .tracer import Attributes, AttributeValue, Span

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_STATUS_ERROR = 2
_CUMULATIVE = 2


class HistogramPoint(Struct, frozen=True):
    """One series of a histogram since `start`, Unix nanoseconds."""

    attributes: Mapping[str, AttributeValue]
    histogram: Histogram
    start: int


class HistogramMetric(Struct, frozen=True):
    name: str
    description: str
    unit: str
    points: tuple[HistogramPoint, ...]


def encode_traces(resource: Attributes, scope: tuple[str, str], spans: Iterable[Span]) -> bytes:
    """An ExportTraceServiceRequest. scope: name and version of what made the spans."""
    scope_spans = _message(1, _encode_scope(scope)) + b"".join(_message(2, _encode_span(span)) for span in spans)
    return _message(1, _message(1, _encode_attributes(1, resource)) + _message(2, scope_spans))


def encode_metrics(resource: Attributes, scope: tuple[str, str], metrics: Iterable[HistogramMetric], now: int) -> bytes:
    """An ExportMetricsServiceRequest. now: Unix nanoseconds."""
    scope_metrics = _message(1, _encode_scope(scope)) + b"".join(
        _message(2, _encode_metric(metric, now)) for metric in metrics
    )
    return _message(1, _message(1, _encode_attributes(1, resource)) + _message(2, scope_metrics))


def _encode_scope(scope: tuple[str, str]) -> bytes:
    return _text(1, scope[0]) + _text(2, scope[1])


def _encode_span(span: Span) -> bytes:
    context = span.context
    status = b"" if span.error is None else _message(15, _text(2, span.error) + _number(3, _STATUS_ERROR))
    return b"".join(
        (
            _message(1, bytes.fromhex(context.trace_id)),
            _message(2, bytes.fromhex(context.span_id)),
            _text(3, context.state),
            _message(4, bytes.fromhex(span.parent_id)) if span.parent_id else b"",
            _text(5, span.name),
            _number(6, span.kind),
            _fixed64(7, span.start),
            _fixed64(8, span.end),
            _encode_attributes(9, span.attributes),
            status,
            # The lower byte has the flags of the trace context.
            _tag(16, _FIXED32) + struct.pack("<I", int(context.is_sampled)),
        )
    )


def _encode_metric(metric: HistogramMetric, now: int) -> bytes:
    points = b"".join(_message(1, _encode_point(point, now)) for point in metric.points)
    return b"".join(
        (
            _text(1, metric.name),
            _text(2, metric.description),
            _text(3, metric.unit),
            _message(9, points + _number(2, _CUMULATIVE)),
        )
    )


def _encode_point(point: HistogramPoint, now: int) -> bytes:
    histogram = point.histogram
    # Copied once: the event loop may count on while this thread encodes, and the sums have to agree.
    counts = list(histogram.counts)
    return b"".join(
        (
            _fixed64(2, point.start),
            _fixed64(3, now),
            _fixed64(4, sum(counts)),
            _tag(5, _FIXED64) + struct.pack("<d", histogram.sum),
            _message(6, struct.pack(f"<{len(counts)}Q", *counts)),
            _message(7, struct.pack(f"<{len(histogram.bounds)}d", *histogram.bounds)),
            _encode_attributes(9, point.attributes),
        )
    )


def _encode_attributes(field: int, attributes: Attributes) -> bytes:
    return b"".join(
        _message(field, _text(1, name) + _message(2, _encode_value(value))) for name, value in attributes.items()
    )


def _encode_value(value: AttributeValue) -> bytes:
    match value:
        case str():
            return _tag(1, _BYTES) + _length_prefixed(_encode_text(value))
        # Before int, of which it is a subclass.
        case bool():
            return _tag(2, _VARINT) + _varint(value)
        case int():
            # int64 in protobuf: negative numbers are the two's complement in ten bytes.
            return _tag(3, _VARINT) + _varint(value & (2**64 - 1))
        case float():
            return _tag(4, _FIXED64) + struct.pack("<d", value)
        case Sequence():
            return _message(5, b"".join(_message(1, _encode_value(item)) for item in value))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _length_prefixed(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _message(field: int, data: bytes) -> bytes:
    return _tag(field, _BYTES) + _length_prefixed(data)


def _text(field: int, text: str) -> bytes:
    """Absent if it is empty, which is the default."""
    return _message(field, _encode_text(text)) if text else b""


def _encode_text(text: str) -> bytes:
    # A client's header or name can have a lone surrogate, which UTF-8 cannot.
    return text.encode("utf-8", "replace")


def _number(field: int, number: int) -> bytes:
    return _tag(field, _VARINT) + _varint(number) if number else b""


def _fixed64(field: int, number: int) -> bytes:
    return _tag(field, _FIXED64) + struct.pack("<Q", number)
