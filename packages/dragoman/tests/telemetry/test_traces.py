"""Traces and metrics of real servers, as a collector on loopback receives them."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.datastructures import Headers
from tests.launch.test_process import stop
from tests.telemetry.collector import Collector, SpanSeen, collecting

from dragoman.core.errors import QueueFull
from dragoman.core.events import Event
from dragoman.core.histogram import Histogram
from dragoman.core.request import GenerateRequest
from dragoman.core.trace_context import SpanContext, parse_trace_context
from dragoman.engines.base_engine import BaseEngine
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.tracing import ServerSpan, Telemetry
from dragoman.telemetry.gen_ai_metrics import GenAiMetrics
from dragoman.telemetry.histograms import HistogramMetric, HistogramPoint, MetricSet
from dragoman.telemetry.otlp_encoding import encode_metrics, encode_traces
from dragoman.telemetry.otlp_exporter import BATCH_SIZE, QUEUE_SIZE, OtlpExporter
from dragoman.telemetry.otlp_settings import OtlpSettings, read_otlp_environment
from dragoman.telemetry.spans import Span, SpanKind, Tracer

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SCRIPT = """
- match: {contains: weather, tool: get_weather}
  reply:
    - tool: {name: get_weather, arguments: {city: Paris}}
- match: {role: tool}
  reply: It is 18 degrees in Paris.
"""


@contextmanager
def traced_server(
    folder: Path, collector: Collector, name: str, *arguments: str
) -> Generator[tuple[Any, str]]:
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        *arguments,
        "--port",
        "0",
        "--store",
        "memory",
    ]
    environment = {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_SERVICE_NAME": name,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b",
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = next(
            word for word in process.stdout.readline().split() if word.startswith("http://")
        )
        try:
            yield process, address
        finally:
            process.kill()


def test_responses_tool_loop_over_two_servers_is_one_trace(tmp_path: Path) -> None:
    (tmp_path / "script.yaml").write_text(SCRIPT)
    tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    with (
        collecting() as collector,
        traced_server(tmp_path, collector, "back", "scripted:script.yaml") as (back, back_url),
        traced_server(tmp_path, collector, "front", f"{back_url}/v1") as (front, url),
        httpx2.Client(base_url=url, headers=headers, timeout=60) as client,
    ):
        first = client.post("/v1/responses", json={"input": "the weather?", "tools": [tool]}).json()
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
        body = {
            "input": [result],
            "previous_response_id": first["id"],
            "tools": [tool],
            "stream": True,
        }
        second = client.post("/v1/responses", json=body)
        assert "18 degrees" in second.text
        client.get("/health")
        assert (stop(front)[0], stop(back)[0]) == (0, 0)
    assert {header["content-type"] for header in collector.headers} == {"application/x-protobuf"}
    assert {header["x-tenant"] for header in collector.headers} == {"a b"}
    spans = [span for span in collector.spans if span.trace_id == TRACE]
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans) == 8
    chains = sorted(
        [
            describe(span, by_id)
            for span in spans
            if span.service == "back" and span.kind == SpanKind.CLIENT
        ]
    )
    assert (
        chains
        == [
            [
                "front: POST /v1/responses",
                "front: chat scripted",
                "back: POST /v1/chat/completions",
                "back: chat scripted",
            ]
        ]
        * 2
    )
    assert {span.state for span in spans} == {"vendor=1"}
    assert {span.parent_id for span in spans if span.name == "POST /v1/responses"} == {PARENT}
    calls = [span for span in spans if span.service == "front" and span.kind == SpanKind.CLIENT]
    for span in calls:
        assert span.attributes["gen_ai.operation.name"] == "chat"
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
        assert span.attributes["gen_ai.usage.output_tokens"] > 0
        assert by_id[span.parent_id].start <= span.start <= span.end
    assert {span.attributes["gen_ai.response.id"] for span in calls} >= {first["id"]}
    requests = [span for span in spans if span.kind == SpanKind.SERVER]
    assert {span.attributes["http.response.status_code"] for span in requests} == {200}
    # No prompt, no response, no arguments.
    contents = b"".join(body for _, body in collector.bodies)
    assert not [word for word in (b"weather?", b"Paris", b"degrees") if word in contents]
    points = [point for point in collector.points if point.service == "front"]
    assert {point.name for point in points} >= {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.client.token.usage",
    }
    usage = {
        point.attributes["gen_ai.token.type"]: point
        for point in points
        if point.name == "gen_ai.client.token.usage"
    }
    assert usage["input"].sum == sum(span.attributes["gen_ai.usage.input_tokens"] for span in calls)
    assert (usage["input"].count, usage["input"].unit, sum(usage["input"].buckets)) == (
        2,
        "{token}",
        2,
    )


def describe(span: SpanSeen, by_id: dict[str, SpanSeen]) -> list[str]:
    """Return the names from the outermost span to this one."""
    names: list[str] = []
    current: SpanSeen | None = span
    while current is not None:
        names.insert(0, f"{current.service}: {current.name}")
        current = by_id.get(current.parent_id)
    return names


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", SpanContext(TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-00", SpanContext(TRACE, PARENT, False)),
        (f"cc-{TRACE}-{PARENT}-03-more", SpanContext(TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-01-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{PARENT}-01", None),
        ("", None),
        (None, None),
    ],
)
def test_parse_trace_context_follows_w3c_specification(
    header: str | None, expected: SpanContext | None
) -> None:
    assert parse_trace_context(header) == expected
    if expected is not None and header is not None and header.startswith("00"):
        assert expected.build_headers() == {"traceparent": header}


def test_parse_trace_context_drops_invalid_tracestate() -> None:
    for state in ("a=\n1", "a=" + 600 * "x", "a=é"):
        found = parse_trace_context(f"00-{TRACE}-{PARENT}-01", state)
        assert found is not None
        assert found.state == ""


def build_tracer(ended: list[Span], ratio: float = 1.0) -> Tracer:
    digits = iter(range(1, 1000))
    return Tracer(ended.append, lambda: 1.5, lambda number: f"{next(digits):0{number}x}", ratio)


def test_tracer_follows_sampling_decision_of_parent() -> None:
    ended: list[Span] = []
    tracer = build_tracer(ended, ratio=0.0)
    for is_sampled in (False, True):
        parent = SpanContext(TRACE, PARENT, is_sampled)
        span = tracer.start("a", SpanKind.SERVER, parent, {})
        assert (span.context.trace_id, span.context.is_sampled) == (TRACE, is_sampled)
        tracer.end(span, {})
    tracer.end(tracer.start("new", SpanKind.SERVER, None, {}), {})
    assert [span.parent_id for span in ended] == [PARENT]


@pytest.mark.parametrize(
    ("method", "host", "name", "expected"),
    [
        ("GET", "llm.example.com:8443", "GET /v1/models", ("GET", None, "llm.example.com", 8443)),
        ("GET", "[::1]:80", "GET /v1/models", ("GET", None, "::1", 80)),
        ("GET", "localhost", "GET /v1/models", ("GET", None, "localhost", None)),
        ("PROPFIND", "localhost:x", "HTTP /v1/models", ("_OTHER", "PROPFIND", "localhost:x", None)),
    ],
)
def test_server_span_follows_semantic_conventions(
    method: str, host: str, name: str, expected: tuple[str, str | None, str, int | None]
) -> None:
    ended: list[Span] = []
    telemetry = Telemetry(build_tracer(ended), GenAiMetrics(MetricSet(0)))
    request = ServerSpan(
        method, "/v1/models", "/v1/models", Headers({"host": host}), "127.0.0.1", "http"
    )
    span = telemetry.start_request(request)
    assert span is not None
    telemetry.end_request(span, 200, None)
    (span,) = ended
    found = span.attributes
    assert span.name == name
    names = ("http.request.method", "http.request.method_original", "server.address", "server.port")
    assert tuple(found.get(each) for each in names) == expected


class FullQueueEngine(BaseEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        raise QueueFull("The queue is full.")
        yield


async def test_server_span_has_response_status() -> None:
    """Anthropic's API has 529 instead of 503."""
    ended: list[Span] = []
    telemetry = Telemetry(build_tracer(ended), GenAiMetrics(MetricSet(0)))
    app = build_asgi_app(
        Models([ServedModel("m", EventBackend(FullQueueEngine()), 4096, 1_700_000_000)]),
        telemetry=telemetry,
    )
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        assert (await client.post("/v1/messages", json=body)).status_code == 529
    (span,) = [span for span in ended if span.kind == SpanKind.SERVER]
    assert (span.attributes["http.response.status_code"], span.attributes["error.type"]) == (
        529,
        "QueueFull",
    )


def export(collector: Collector, *spans: Span) -> None:
    exporter = OtlpExporter(
        OtlpSettings(collector.url, {}, {"service.name": "s"}), MetricSet(0), ("dragoman", "1")
    )
    for span in spans:
        exporter.export(span)
    exporter.close()


def test_exporter_sends_every_attribute_type() -> None:
    ended: list[Span] = []
    tracer = build_tracer(ended)
    attributes = {
        "text": "é\ud800",
        "yes": True,
        "number": -3,
        "big": 2**62,
        "real": 0.5,
        "list": ("a", "b"),
    }
    tracer.end(tracer.start("name", SpanKind.INTERNAL, None, attributes), {"late": 1}, "timeout")
    with collecting() as collector:
        export(collector, *ended)
    (span,) = collector.spans
    assert span.attributes == {**attributes, "text": "é?", "list": ["a", "b"], "late": 1}
    assert (span.name, span.kind, span.error, span.start) == ("name", 1, "timeout", 1_500_000_000)


def test_exporter_collector_failure_drops_spans_and_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[Span] = []
    tracer = build_tracer(ended)
    tracer.end(tracer.start("name", SpanKind.INTERNAL, None, {}), {})
    export(Collector("http://127.0.0.1:9"), *ended)
    assert "traces cannot be sent to http://127.0.0.1:9/v1/traces: ConnectError" in caplog.text
    with collecting() as collector:
        collector.statuses = [400]
        export(collector, *ended)
    assert "it answered 400" in caplog.text


def build_spans(count: int) -> list[Span]:
    ended: list[Span] = []
    tracer = build_tracer(ended)
    tracer.end(tracer.start("name", SpanKind.INTERNAL, None, {}), {})
    return ended * count


def test_exporter_close_after_failure_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    exporter = OtlpExporter(
        OtlpSettings("http://127.0.0.1:9", {"x": "é"}), MetricSet(0), ("dragoman", "1")
    )
    for span in build_spans(QUEUE_SIZE):
        exporter.export(span)
    exporter.close()
    assert "telemetry is no longer sent" in caplog.text


def test_exporter_close_with_silent_collector_stops_sending() -> None:
    accepted: list[None] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            accepted.append(None)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        # The first batch may be sent, and repeated, before the exporter closes.
        export(
            Collector(f"http://127.0.0.1:{server.server_address[1]}"), *build_spans(5 * BATCH_SIZE)
        )
        server.shutdown()
    assert 1 <= len(accepted) <= 4


def test_otlp_environment_variables_are_parsed() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,a=b",
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=ignored,deployment.environment.name=test",
        "OTEL_SERVICE_NAME": "gateway",
    }
    found = read_otlp_environment(None, environment, "1.2")
    assert found is not None
    assert (found.endpoint, found.headers) == (
        "http://collector:4318",
        {"authorization": "Bearer x", "a": "b"},
    )
    assert (found.resource["service.name"], found.resource["deployment.environment.name"]) == (
        "gateway",
        "test",
    )
    assert read_otlp_environment(None, {**environment, "OTEL_SDK_DISABLED": "true"}, "1") is None
    assert read_otlp_environment(None, {}, "1") is None
    with pytest.raises(ValueError, match=r"--otlp-endpoint: .*not an http"):
        read_otlp_environment("collector:4317", {}, "1")
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT: .*not an http"):
        read_otlp_environment(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, "1")


@pytest.mark.parametrize("header", ["x=%C3%A9", "x=a%0D%0Ab", "a%20b=x", "=x"])
def test_otlp_headers_malformed_error_hides_value(header: str) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": header}
    with pytest.raises(
        ValueError, match=r"OTEL_EXPORTER_OTLP_HEADERS: the header '.{0,3}' is malformed"
    ):
        read_otlp_environment(None, variables, "1")


def test_otlp_messages_parse_with_official_definitions() -> None:
    """The official definitions parse the messages. Needs the package
    opentelemetry-proto.
    """
    trace = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    metric = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
    ended: list[Span] = []
    tracer = build_tracer(ended)
    tracer.end(
        tracer.start("name", SpanKind.SERVER, SpanContext(TRACE, PARENT, True, "a=1"), {"n": -1}),
        {},
        "why",
    )
    message = trace.ExportTraceServiceRequest.FromString(
        encode_traces({"service.name": "s"}, ("d", "1"), ended)
    )
    (span,) = message.resource_spans[0].scope_spans[0].spans
    assert (span.name, span.trace_id.hex(), span.parent_span_id.hex(), span.kind) == (
        "name",
        TRACE,
        PARENT,
        2,
    )
    assert (span.attributes[0].value.int_value, span.status.code, span.status.message) == (
        -1,
        2,
        "why",
    )
    assert (span.start_time_unix_nano, span.flags, span.trace_state) == (1_500_000_000, 1, "a=1")
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.5, 9.0):
        histogram.observe(value)
    points = (HistogramPoint({"a": "b"}, histogram, 5),)
    body = encode_metrics({}, ("d", "1"), [HistogramMetric("m", "about", "s", points)], 7)
    (found,) = (
        metric.ExportMetricsServiceRequest.FromString(body)
        .resource_metrics[0]
        .scope_metrics[0]
        .metrics
    )
    (point,) = found.histogram.data_points
    assert (found.name, found.unit, found.histogram.aggregation_temporality) == ("m", "s", 2)
    assert (list(point.bucket_counts), list(point.explicit_bounds), point.sum) == (
        [1, 1, 1],
        [1.0, 2.0],
        11.0,
    )
    assert (point.start_time_unix_nano, point.time_unix_nano, point.count) == (5, 7, 3)
