"""Traces and metrics of real servers, as a collector on loopback receives them."""

from __future__ import annotations

import os
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, StatusCode
from starlette.datastructures import Headers
from tests.launch.test_process import stop
from tests.telemetry.collector import Collector, SpanSeen, collecting

from dragoman.core.errors import QueueFull
from dragoman.core.events import Event
from dragoman.core.request import GenerateRequest
from dragoman.core.trace_context import SpanContext, parse_trace_context
from dragoman.engines.base_engine import BaseEngine
from dragoman.launch.logs import build_telemetry
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.tracing import ServerSpan, Telemetry
from dragoman.settings import Settings, SettingsError
from dragoman.telemetry.gen_ai_metrics import GenAiMetrics
from dragoman.telemetry.otlp_export import OtlpExport
from dragoman.telemetry.otlp_settings import OtlpReceivers, find_receivers
from dragoman.telemetry.sdk_tracer import SdkHistograms, SdkTracer

SERVER = 2
CLIENT = 3
"""OTLP's numbers of the kinds of spans."""
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
        [describe(span, by_id) for span in spans if span.service == "back" and span.kind == CLIENT]
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
    calls = [span for span in spans if span.service == "front" and span.kind == CLIENT]
    for span in calls:
        assert span.attributes["gen_ai.operation.name"] == "chat"
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
        assert span.attributes["gen_ai.usage.output_tokens"] > 0
        assert by_id[span.parent_id].start <= span.start <= span.end
    assert {span.attributes["gen_ai.response.id"] for span in calls} >= {first["id"]}
    requests = [span for span in spans if span.kind == SERVER]
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


class Spans:
    """A tracer of the SDK, whose ended spans are kept."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(ParentBasedTraceIdRatio(ratio), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = SdkTracer(provider.get_tracer("test"))

    @property
    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def build_telemetry(self) -> Telemetry:
        meter = MeterProvider(shutdown_on_exit=False).get_meter("test")
        return Telemetry(self.tracer, GenAiMetrics(SdkHistograms(meter)), lambda: None)


def test_tracer_follows_sampling_decision_of_parent() -> None:
    spans = Spans(ratio=0.0)
    for is_sampled in (False, True):
        parent = SpanContext(TRACE, PARENT, is_sampled, "vendor=1")
        span = spans.tracer.start("a", "server", parent, {})
        assert (span.context.trace_id, span.context.is_sampled) == (TRACE, is_sampled)
        assert (span.context.span_id != PARENT, span.context.state) == (True, "vendor=1")
        span.end({})
    spans.tracer.start("new", "server", None, {}).end({})
    (ended,) = spans.ended
    assert ended.parent is not None
    assert f"{ended.parent.span_id:016x}" == PARENT


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
    spans = Spans()
    telemetry = spans.build_telemetry()
    request = ServerSpan(
        method, "/v1/models", "/v1/models", Headers({"host": host}), "127.0.0.1", "http"
    )
    span = telemetry.start_request(request)
    assert span is not None
    telemetry.end_request(span, 200, None)
    (ended,) = spans.ended
    found = ended.attributes or {}
    assert ended.name == name
    names = ("http.request.method", "http.request.method_original", "server.address", "server.port")
    assert tuple(found.get(each) for each in names) == expected


class FullQueueEngine(BaseEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        raise QueueFull("The queue is full.")
        yield


async def test_server_span_has_response_status() -> None:
    """Anthropic's API has 529 instead of 503."""
    spans = Spans()
    telemetry = spans.build_telemetry()
    app = build_asgi_app(
        Models([ServedModel("m", EventBackend(FullQueueEngine()), 4096, 1_700_000_000)]),
        telemetry=telemetry,
    )
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        assert (await client.post("/v1/messages", json=body)).status_code == 529
    (span,) = [span for span in spans.ended if span.kind == SpanKind.SERVER]
    attributes = span.attributes or {}
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (529, "QueueFull")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "QueueFull")


def start_export(url: str) -> OtlpExport:
    return OtlpExport(OtlpReceivers(f"{url}/v1/traces", f"{url}/v1/metrics"), "1", 1.0)


def test_export_sends_every_attribute_type() -> None:
    attributes = {
        "text": "é\ud800",
        "yes": True,
        "number": -3,
        "big": 2**62,
        "real": 0.5,
        "list": ("a", "b"),
    }
    with collecting() as collector:
        export = start_export(collector.url)
        export.tracer.start("name\ud800", "client", None, attributes).end({"late": 1}, "timeout")
        export.histograms.define("size", "about", "s", (1.0, 2.0))
        for value in (0.5, 1.5, 9.0):
            export.histograms.observe("size", value, {"model": "\ud800"})
        export.close()
    (span,) = collector.spans
    assert span.attributes == {**attributes, "text": "é?", "list": ["a", "b"], "late": 1}
    assert (span.name, span.kind, span.error, span.service) == (
        "name?",
        CLIENT,
        "timeout",
        "dragoman",
    )
    (point,) = collector.points
    assert (point.buckets, point.bounds, point.sum) == ([1, 1, 1], [1.0, 2.0], 11.0)
    assert (point.attributes, point.unit) == ({"model": "?"}, "s")


def test_export_refused_spans_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector:
        collector.statuses = [400]
        export = start_export(collector.url)
        export.tracer.start("name", "server", None, {}).end({})
        export.close()
    assert not collector.spans
    assert "400" in caplog.text


def test_export_close_with_silent_receiver_is_bounded() -> None:
    released = threading.Event()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            released.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        export = start_export(f"http://127.0.0.1:{server.server_address[1]}")
        for _ in range(3000):
            export.tracer.start("name", "server", None, {}).end({})
        start = time.monotonic()
        export.close(timeout=0.1)
        # The SDK alone waits for 30 seconds.
        assert time.monotonic() - start < 25
        released.set()
        server.shutdown()


def test_otlp_receivers_follow_variables() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x,a=b",
    }
    both = OtlpReceivers("http://collector:4318/v1/traces", "http://collector:4318/v1/metrics")
    assert find_receivers(None, environment) == both
    own = {**environment, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://traces/in"}
    assert find_receivers(None, own) == OtlpReceivers("https://traces/in", both.metrics)
    assert find_receivers("http://collector:4318", own) == both
    assert find_receivers(None, {**environment, "OTEL_METRICS_EXPORTER": "none"}) == OtlpReceivers(
        both.traces, None
    )
    assert find_receivers(None, {**environment, "OTEL_SDK_DISABLED": "true"}) is None
    assert find_receivers(None, {}) is None
    with pytest.raises(ValueError, match=r"--otlp-endpoint: .*not an http"):
        find_receivers("collector:4317", {})
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT: .*not an http"):
        find_receivers(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"})


@pytest.mark.parametrize("header", ["x=%C3%A9", "x=a%0D%0Ab", "a%20b=x", "=x"])
def test_otlp_headers_malformed_error_hides_value(header: str) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_HEADERS": header}
    with pytest.raises(
        ValueError, match=r"OTEL_EXPORTER_OTLP_HEADERS: the header '.{0,3}' is malformed"
    ):
        find_receivers(None, variables)


def test_telemetry_without_sdk_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dragoman.telemetry.otlp_export")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"pip install 'dragoman\[otel\]'"):
        build_telemetry(Settings(otlp_endpoint="http://127.0.0.1:9"), {})
    assert build_telemetry(Settings(), {}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_BSP_MAX_QUEUE_SIZE", "0"), ("OTEL_METRIC_EXPORT_INTERVAL", "-5")],
)
def test_invalid_variable_of_sdk_is_settings_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match="OTEL_"):
        build_telemetry(Settings(otlp_endpoint="http://127.0.0.1:9"), {})
