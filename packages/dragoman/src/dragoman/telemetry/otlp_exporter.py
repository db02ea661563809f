"""The exporter: sends spans and histograms over OTLP/HTTP, in a thread of its own.

Requests never wait for it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING

from .histograms import MetricSet
from .otlp_encoding import encode_metrics, encode_traces
from .otlp_settings import OtlpSettings
from .spans import Span

if TYPE_CHECKING:
    import httpx2

log = logging.getLogger(__name__)


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
        import httpx2  # noqa: PLC0415

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
