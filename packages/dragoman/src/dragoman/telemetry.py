"""OpenTelemetry: spans and histograms, exported over OTLP/HTTP by a thread, so that
    requests never wait for it.

The module encodes spans and cumulative histograms in protobuf's wire format, without a
protobuf library. Field numbers are those of the .proto files
(https://github.com/open-telemetry/opentelemetry-proto, v1), names of histograms those
of the semantic conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/).
"""

from __future__ import annotations

import logging
import queue
import re
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from .core.metrics import Histogram
from .core.request import SpanContext

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]
Series = tuple[tuple[str, AttributeValue], ...]

QUEUE_SIZE = 8192
"""Maximum ended spans that wait to be sent; further ones are dropped and counted."""
BATCH_SIZE = 512
"""Maximum spans per request."""
FLUSH_INTERVAL = 2.0
"""Seconds after which an incomplete batch of spans is sent."""
METRIC_INTERVAL = 60.0
"""Seconds between exports of metrics."""
TIMEOUT = 10.0
"""Seconds for one request."""
RETRIES = (0.5, 1.0, 2.0)
"""Seconds before each retry."""
# Status codes that the OTLP specification declares retryable.
_RETRIED = frozenset({429, 502, 503, 504})
CONTENT_TYPE = "application/x-protobuf"
# A header line: a token, and a value of visible ASCII characters, spaces and tabs.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e]*")

# Bucket boundaries of the semantic conventions.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(float(4**power) for power in range(14))
MAX_SERIES = 256
"""Maximum series of one metric; further ones are not recorded."""

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
"""Protobuf's wire types."""
_STATUS_ERROR = 2
_CUMULATIVE = 2
"""OTLP's STATUS_CODE_ERROR and AGGREGATION_TEMPORALITY_CUMULATIVE."""


# Spans.


class SpanKind(IntEnum):
    """The kind of a span, with OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span:
    """A span. It does not change after its end.

    context: the context that its children refer to; if the trace is not sampled, it is
        only passed on.
    parent_id: span id of the parent; empty for a root span.
    start, end: Unix nanoseconds.
    error: reason of the failure; None without one.
    """

    __slots__ = ("attributes", "context", "end", "error", "kind", "name", "parent_id", "start")

    def __init__(
        self, name: str, kind: SpanKind, context: SpanContext, parent_id: str, start: int
    ) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        self.parent_id = parent_id
        self.start = start
        self.end = 0
        self.attributes: dict[str, AttributeValue] = {}
        self.error: str | None = None


class Tracer:
    """Starts and ends spans.

    export: receives ended spans; must not block.
    now: returns Unix seconds.
    random_hex: returns the given number of random hexadecimal digits.
    ratio: share of new traces that are recorded, 0 to 1. For a request with
        `traceparent` the client decides.
    """

    def __init__(
        self,
        export: Callable[[Span], None],
        now: Callable[[], float],
        random_hex: Callable[[int], str],
        ratio: float = 1.0,
    ) -> None:
        self._export = export
        self._now = now
        self._random_hex = random_hex
        self._ratio = ratio

    def start(
        self, name: str, kind: SpanKind, parent: SpanContext | None, attributes: Attributes
    ) -> Span:
        if parent is None:
            trace_id = self._random_hex(32)
            # Sampled by the trace id, so that all servers of a trace decide alike.
            is_sampled = int(trace_id[16:], 16) < self._ratio * 2**64
            state = ""
            parent_id = ""
        else:
            trace_id = parent.trace_id
            is_sampled = parent.is_sampled
            state = parent.state
            parent_id = parent.span_id
        context = SpanContext(trace_id, self._random_hex(16), is_sampled, state)
        span = Span(name, kind, context, parent_id, self._read_clock())
        if is_sampled:
            span.attributes |= attributes
        return span

    def end(self, span: Span, attributes: Attributes, error: str | None = None) -> None:
        """End a span, and export it if it is sampled.

        error: a short reason, such as a status or an error code; never text that could
            quote a prompt.
        """
        if not span.context.is_sampled:
            return
        span.attributes |= attributes
        span.end = self._read_clock()
        span.error = error
        self._export(span)

    def _read_clock(self) -> int:
        # Rounded to microseconds: a float of Unix seconds has a resolution of about 0.2
        # microseconds.
        return round(self._now() * 1_000_000) * 1000


# Histograms.


class HistogramPoint(Struct, frozen=True):
    """One series of a histogram.

    start: start of the series, in Unix nanoseconds.
    """

    attributes: Mapping[str, AttributeValue]
    histogram: Histogram
    start: int


class HistogramMetric(Struct, frozen=True):
    name: str
    description: str
    unit: str
    points: tuple[HistogramPoint, ...]


class MetricSet:
    """Histograms by name and attributes.

    start: start of all series, in Unix nanoseconds.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        self._definitions: dict[str, tuple[str, str, Sequence[float]]] = {}
        self._series: dict[str, dict[Series, Histogram]] = {}

    def define(self, name: str, description: str, unit: str, bounds: Sequence[float]) -> None:
        self._definitions[name] = description, unit, bounds
        self._series[name] = {}

    def observe(self, name: str, value: float, attributes: Attributes) -> None:
        key = tuple(attributes.items())
        series = self._series[name]
        histogram = series.get(key)
        if histogram is None:
            if len(series) >= MAX_SERIES:
                return
            histogram = series[key] = Histogram(self._definitions[name][2])
        histogram.observe(value)

    def collect(self) -> list[HistogramMetric]:
        """Return all metrics that have a value. Thread-safe."""
        # The series are copied: the event loop may add one during the iteration.
        return [
            HistogramMetric(
                name,
                description,
                unit,
                tuple(
                    HistogramPoint(dict(key), histogram, self._start)
                    for key, histogram in list(self._series[name].items())
                ),
            )
            for name, (description, unit, _) in self._definitions.items()
            if self._series[name]
        ]


class GenAiMetrics:
    """Histograms of the durations and tokens of calls."""

    def __init__(self, metrics: MetricSet) -> None:
        self._metrics = metrics
        metrics.define("gen_ai.server.request.duration", "Duration of a call.", "s", _SECONDS)
        metrics.define(
            "gen_ai.server.time_to_first_token", "Time to the first token of a call.", "s", _TTFT
        )
        metrics.define(
            "gen_ai.server.time_per_output_token",
            "Time per token after the first.",
            "s",
            _PER_TOKEN,
        )
        metrics.define("gen_ai.client.token.usage", "Tokens of a call.", "{token}", _TOKENS)

    def record(
        self,
        attributes: Attributes,
        *,
        seconds: float,
        ttft: float | None,
        input_tokens: int | None,
        output_tokens: int,
        error: str | None,
    ) -> None:
        observe = self._metrics.observe
        failed = {} if error is None else {"error.type": error}
        observe("gen_ai.server.request.duration", seconds, {**attributes, **failed})
        if ttft is not None:
            observe("gen_ai.server.time_to_first_token", ttft, attributes)
            if output_tokens > 1:
                per_token = (seconds - ttft) / (output_tokens - 1)
                observe("gen_ai.server.time_per_output_token", per_token, attributes)
        if input_tokens is not None:
            observe(
                "gen_ai.client.token.usage",
                input_tokens,
                {**attributes, "gen_ai.token.type": "input"},
            )
            observe(
                "gen_ai.client.token.usage",
                output_tokens,
                {**attributes, "gen_ai.token.type": "output"},
            )


# Export.


class OtlpSettings(Struct, frozen=True):
    """The receiver of telemetry, and the attributes of this server.

    endpoint: base URL, to which `/v1/traces` and `/v1/metrics` are appended.
    headers: HTTP headers of each export; they may contain credentials.
    resource: attributes of this server, such as `service.name`.
    """

    endpoint: str
    headers: Mapping[str, str] = {}
    resource: Mapping[str, str] = {}


def read_otlp_environment(
    endpoint: str | None, environment: Mapping[str, str], version: str
) -> OtlpSettings | None:
    """Read the settings from OpenTelemetry's environment variables; None if no endpoint
    is set.

    endpoint: takes precedence over the variables; None if unset.

    Raises:
        ValueError: the endpoint is not an HTTP URL, or a header is malformed.
    """
    source = "--otlp-endpoint" if endpoint else "OTEL_EXPORTER_OTLP_ENDPOINT"
    endpoint = endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{source}: {endpoint!r} is not an http or https URL")
    resource = {
        "service.name": "dragoman",
        "service.version": version,
        "telemetry.sdk.name": "dragoman",
        "telemetry.sdk.language": "python",
        **_parse_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    }
    # By specification this variable takes precedence over a `service.name` in
    # OTEL_RESOURCE_ATTRIBUTES.
    if environment.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = environment["OTEL_SERVICE_NAME"]
    headers = _parse_pairs(environment.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    for name, value in headers.items():
        # The value can be a credential, so the message does not quote it.
        if _HEADER.fullmatch(f"{name}: {value}") is None:
            raise ValueError(f"OTEL_EXPORTER_OTLP_HEADERS: the header {name!r} is malformed")
    return OtlpSettings(endpoint.rstrip("/"), headers, resource)


def _parse_pairs(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`, with percent-encoding."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


class OtlpExporter:
    """The exporter: a queue of ended spans, and a thread that sends them and the
    metrics.

    scope: name and version of this program.
    """

    def __init__(self, settings: OtlpSettings, metrics: MetricSet, scope: tuple[str, str]) -> None:
        self._settings = settings
        self._metrics = metrics
        self._scope = scope
        self._spans: queue.Queue[Span | None] = queue.Queue(QUEUE_SIZE)
        self._dropped = 0
        self._is_closing = threading.Event()
        self._has_failed = self._has_given_up = False
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def export(self, span: Span) -> None:
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            # This runs in the event loop, which must not wait for the receiver.
            self._dropped += 1

    def close(self) -> None:
        """Send the remaining spans and metrics without retries, and stop the thread.
        Blocks.

        What remains is dropped if the receiver does not respond.
        """
        self._is_closing.set()
        # While the queue is full, the thread takes spans until it gets the None, unless
        # it has failed.
        while self._thread.is_alive():
            try:
                self._spans.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()

    def _run(self) -> None:
        try:
            self._send_until_closed()
        except Exception:
            log.exception("telemetry is no longer sent")

    def _send_until_closed(self) -> None:
        next_metrics = time.monotonic() + METRIC_INTERVAL
        import httpx2  # noqa: PLC0415 - servers without telemetry do not need it

        with httpx2.Client(
            timeout=TIMEOUT, headers={**self._settings.headers, "content-type": CONTENT_TYPE}
        ) as client:
            while True:
                spans, has_ended = self._take_batch()
                if spans:
                    self._send(
                        client, "traces", encode_traces(self._settings.resource, self._scope, spans)
                    )
                if has_ended or time.monotonic() >= next_metrics:
                    next_metrics = time.monotonic() + METRIC_INTERVAL
                    if metrics := self._metrics.collect():
                        body = encode_metrics(
                            self._settings.resource, self._scope, metrics, time.time_ns()
                        )
                        self._send(client, "metrics", body)
                if has_ended:
                    return

    def _take_batch(self) -> tuple[list[Span], bool]:
        """Wait for a full batch or the flush interval; return the spans, and whether
        the exporter is closed.
        """
        spans: list[Span] = []
        deadline = time.monotonic() + FLUSH_INTERVAL
        while len(spans) < BATCH_SIZE:
            try:
                span = self._spans.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if span is None:
                return spans, True
            spans.append(span)
        return spans, False

    def _send(self, client: httpx2.Client, signal: str, body: bytes) -> None:
        import httpx2  # noqa: PLC0415

        if self._has_given_up:
            return
        url = f"{self._settings.endpoint}/v1/{signal}"
        failure: str | None = None
        for delay in (*RETRIES, None):
            try:
                status = client.post(url, content=body).status_code
                failure = None if status < 300 else f"it answered {status}"
                is_final = status not in _RETRIED
            except (httpx2.HTTPError, OSError) as error:
                failure = type(error).__name__
                is_final = False
                # Each further request could wait for the timeout and delay the end of
                # the server.
                self._has_given_up = self._is_closing.is_set()
            if failure is None:
                self._has_failed = False
                return
            if is_final or delay is None or self._is_closing.is_set():
                break
            self._is_closing.wait(delay)
        # Logged only for the first of consecutive failures: a receiver that is down
        # must not flood the log.
        if not self._has_failed:
            dropped = self._dropped
            log.warning(
                "%s cannot be sent to %s: %s; the full queue dropped %d spans",
                signal,
                url,
                failure,
                dropped,
            )
        self._has_failed = True


# Encoding in protobuf's wire format.


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
