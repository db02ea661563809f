"""Sends spans and metrics to an OTLP/HTTP receiver from a thread, so that requests never wait for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

from .instruments import MetricSet
from .otlp import encode_metrics, encode_traces
from .tracer import Span

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)

QUEUE_SIZE = 8192
"""Ended spans that wait; further ones are dropped and counted."""
BATCH_SIZE = 512
FLUSH_INTERVAL = 2.0
METRIC_INTERVAL = 60.0
TIMEOUT = 10.0
RETRIES = (0.5, 1.0, 2.0)
"""Seconds before each retry of a response that asks for one."""
_RETRIED = frozenset({429, 502, 503, 504})
CONTENT_TYPE = "application/x-protobuf"


class OtlpSettings(Struct, frozen=True):
    """Where to send to, and as what.

    endpoint: base URL, to which `/v1/traces` and `/v1/metrics` are appended.
    headers: may contain credentials.
    """

    endpoint: str
    headers: Mapping[str, str] = {}
    resource: Mapping[str, str] = {}


def read_otlp_environment(endpoint: str | None, environment: Mapping[str, str], version: str) -> OtlpSettings | None:
    """The settings, with OpenTelemetry's own variables; None where nothing names an endpoint.

    endpoint: takes precedence over the variables. Raises ValueError.
    """
    endpoint = endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{endpoint!r} is no http(s) URL")
    resource = {
        "service.name": "dragoman",
        "service.version": version,
        "telemetry.sdk.name": "dragoman",
        "telemetry.sdk.language": "python",
        **_parse_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    }
    if environment.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = environment["OTEL_SERVICE_NAME"]
    headers = _parse_pairs(environment.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    return OtlpSettings(endpoint.rstrip("/"), headers, resource)


def _parse_pairs(text: str) -> dict[str, str]:
    """`name=value,name=value`, with percent-encoding."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


class OtlpExporter:
    """The queue of ended spans, and its thread. scope: name and version of this program."""

    def __init__(self, settings: OtlpSettings, metrics: MetricSet, scope: tuple[str, str]) -> None:
        self._settings, self._metrics, self._scope = settings, metrics, scope
        self._spans: queue.Queue[Span | None] = queue.Queue(QUEUE_SIZE)
        self._dropped = 0
        self._is_closing = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def export(self, span: Span) -> None:
        try:
            self._spans.put_nowait(span)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Send what is left, without retries, and end the thread."""
        self._is_closing.set()
        # Blocks until there is room: the thread takes spans until it sees the end.
        self._spans.put(None)
        self._thread.join()

    def _run(self) -> None:
        next_metrics = time.monotonic() + METRIC_INTERVAL
        import httpx2  # noqa: PLC0415 - servers without telemetry do not need it

        with httpx2.Client(timeout=TIMEOUT, headers={**self._settings.headers, "content-type": CONTENT_TYPE}) as client:
            while True:
                spans, has_ended = self._take_batch()
                if spans:
                    self._send(client, "traces", encode_traces(self._settings.resource, self._scope, spans))
                if has_ended or time.monotonic() >= next_metrics:
                    next_metrics = time.monotonic() + METRIC_INTERVAL
                    self._send_metrics(client)
                if has_ended:
                    return

    def _take_batch(self) -> tuple[list[Span], bool]:
        """Spans, as soon as there is a batch or the interval has passed, and whether the exporter is closed."""
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

    def _send_metrics(self, client: httpx2.Client) -> None:
        metrics = self._metrics.collect()
        if metrics:
            body = encode_metrics(self._settings.resource, self._scope, metrics, time.time_ns())
            self._send(client, "metrics", body)

    def _send(self, client: httpx2.Client, signal: str, body: bytes) -> None:
        import httpx2  # noqa: PLC0415

        url = f"{self._settings.endpoint}/v1/{signal}"
        failure: str | None = None
        for delay in (*RETRIES, None):
            try:
                status = client.post(url, content=body).status_code
                failure = None if status < 300 else f"it answered {status}"
                is_final = status not in _RETRIED
            except (httpx2.HTTPError, OSError) as error:
                failure, is_final = type(error).__name__, False
            if failure is None:
                self._has_failed = False
                return
            if is_final or delay is None or self._is_closing.is_set():
                break
            self._is_closing.wait(delay)
        # Once, and again after it has worked: a receiver that is down must not fill the log.
        if not self._has_failed:
            log.warning("%s cannot be sent to %s: %s; %d spans were dropped", signal, url, failure, self._dropped)
        self._has_failed = True
