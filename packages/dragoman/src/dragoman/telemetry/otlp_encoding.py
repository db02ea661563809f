"""Encodes spans or histograms in protobuf's wire format, without a protobuf library.

Field numbers are those of the .proto files
(https://github.com/open-telemetry/opentelemetry-proto, v1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .histograms import HistogramMetric
from .spans import Attributes, AttributeValue, Span

if TYPE_CHECKING:
    pass


_VARINT = 0


_FIXED64 = 1


_BYTES = 2


_FIXED32 = 5
"""Protobuf's wire types."""


_STATUS_ERROR = 2


_CUMULATIVE = 2
"""OTLP's STATUS_CODE_ERROR and AGGREGATION_TEMPORALITY_CUMULATIVE."""


def encode_traces(resource: Attributes, scope: tuple[str, str], spans: Iterable[Span]) -> bytes:
    """Encode an ExportTraceServiceRequest.

    scope: name and version of the program that made the spans.
    """
    scope_spans = [_encode_message(1, _encode_scope(scope))]
    for span in spans:
        context = span.context
        fields = (
            _encode_message(1, bytes.fromhex(context.trace_id)),
            _encode_message(2, bytes.fromhex(context.span_id)),
            _encode_text(3, context.state),
            _encode_message(4, bytes.fromhex(span.parent_id)) if span.parent_id else b"",
            _encode_text(5, span.name),
            _encode_number(6, span.kind),
            _encode_fixed64(7, span.start),
            _encode_fixed64(8, span.end),
            _encode_attributes(9, span.attributes),
            b""
            if span.error is None
            else _encode_message(
                15, _encode_text(2, span.error) + _encode_number(3, _STATUS_ERROR)
            ),
            # `flags`: the lower byte has the W3C trace flags.
            _encode_tag(16, _FIXED32) + struct.pack("<I", int(context.is_sampled)),
        )
        scope_spans.append(_encode_message(2, b"".join(fields)))
    return _encode_message(
        1,
        _encode_message(1, _encode_attributes(1, resource))
        + _encode_message(2, b"".join(scope_spans)),
    )


def encode_metrics(
    resource: Attributes, scope: tuple[str, str], metrics: Iterable[HistogramMetric], now: int
) -> bytes:
    """Encode an ExportMetricsServiceRequest. now: Unix nanoseconds."""
    scope_metrics = [_encode_message(1, _encode_scope(scope))]
    for metric in metrics:
        points: list[bytes] = []
        for point in metric.points:
            histogram = point.histogram
            # Copied: the event loop may count during the encoding, and `count` must
            #     equal the sum of the buckets.
            counts = list(histogram.counts)
            fields = (
                _encode_fixed64(2, point.start),
                _encode_fixed64(3, now),
                _encode_fixed64(4, sum(counts)),
                _encode_tag(5, _FIXED64) + struct.pack("<d", histogram.sum),
                _encode_message(6, struct.pack(f"<{len(counts)}Q", *counts)),
                _encode_message(7, struct.pack(f"<{len(histogram.bounds)}d", *histogram.bounds)),
                _encode_attributes(9, point.attributes),
            )
            points.append(_encode_message(1, b"".join(fields)))
        names = (
            _encode_text(1, metric.name)
            + _encode_text(2, metric.description)
            + _encode_text(3, metric.unit)
        )
        data = _encode_message(9, b"".join(points) + _encode_number(2, _CUMULATIVE))
        scope_metrics.append(_encode_message(2, names + data))
    encoded_resource = _encode_message(1, _encode_attributes(1, resource))
    return _encode_message(1, encoded_resource + _encode_message(2, b"".join(scope_metrics)))


def _encode_scope(scope: tuple[str, str]) -> bytes:
    return _encode_text(1, scope[0]) + _encode_text(2, scope[1])


def _encode_attributes(field: int, attributes: Attributes) -> bytes:
    return b"".join(
        _encode_message(field, _encode_text(1, name) + _encode_message(2, _encode_value(value)))
        for name, value in attributes.items()
    )


def _encode_value(value: AttributeValue) -> bytes:
    match value:
        case str():
            return _encode_tag(1, _BYTES) + _prefix_length(_encode_utf8(value))
        # Before int, of which it is a subclass.
        case bool():
            return _encode_tag(2, _VARINT) + _encode_varint(value)
        case int():
            # int64 in protobuf: negative numbers are the two's complement in ten bytes.
            return _encode_tag(3, _VARINT) + _encode_varint(value & (2**64 - 1))
        case float():
            return _encode_tag(4, _FIXED64) + struct.pack("<d", value)
        case Sequence():
            return _encode_message(
                5, b"".join(_encode_message(1, _encode_value(item)) for item in value)
            )


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _encode_tag(field: int, wire_type: int) -> bytes:
    return _encode_varint(field << 3 | wire_type)


def _prefix_length(data: bytes) -> bytes:
    return _encode_varint(len(data)) + data


def _encode_message(field: int, data: bytes) -> bytes:
    return _encode_tag(field, _BYTES) + _prefix_length(data)


def _encode_text(field: int, text: str) -> bytes:
    """Encode a string field. An empty string is the default, so it is omitted."""
    return _encode_message(field, _encode_utf8(text)) if text else b""


def _encode_utf8(text: str) -> bytes:
    # A client's text can contain lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace")


def _encode_number(field: int, number: int) -> bytes:
    return _encode_tag(field, _VARINT) + _encode_varint(number) if number else b""


def _encode_fixed64(field: int, number: int) -> bytes:
    return _encode_tag(field, _FIXED64) + struct.pack("<Q", number)
