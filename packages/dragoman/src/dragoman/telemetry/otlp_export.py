"""Sends spans and metrics over OTLP/HTTP, in threads of OpenTelemetry's SDK.

Requests never wait for it: the SDK drops spans that its queue has no room for.
"""

from __future__ import annotations

import time
import uuid
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

from .otlp_settings import OtlpReceivers
from .sdk_tracer import SdkHistograms, SdkTracer

FLUSH_TIMEOUT = 5.0
"""Seconds for the last spans and metrics when the server ends."""


class OtlpExport:
    """The providers of the SDK, which are this server's alone: nothing is registered
    for the whole process.

    version: version of this program.
    ratio: share of new traces that are recorded; at 1, OTEL_TRACES_SAMPLER decides.
    """

    def __init__(self, receivers: OtlpReceivers, version: str, ratio: float) -> None:
        resource = _build_resource(version)
        # None: the sampler that the variables name, by default one that takes all.
        sampler: Sampler | None = ParentBasedTraceIdRatio(ratio) if ratio < 1 else None
        self._tracers = TracerProvider(sampler, resource, shutdown_on_exit=False)
        if receivers.traces is not None:
            self._tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(receivers.traces)))
        readers = (
            ()
            if receivers.metrics is None
            else (PeriodicExportingMetricReader(OTLPMetricExporter(receivers.metrics)),)
        )
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        self.tracer = SdkTracer(self._tracers.get_tracer("dragoman", version))
        self.histograms = SdkHistograms(self._meters.get_meter("dragoman", version))

    def close(self, timeout: float = FLUSH_TIMEOUT) -> None:
        """Send the remaining spans and metrics, and stop the threads. Blocks for at
        most `timeout` seconds: what remains then is dropped.
        """
        # In threads that end with the process: the SDK waits for 30 seconds, and longer
        # for a receiver that accepts connections and does not respond.
        threads = [
            Thread(target=provider.shutdown, name="otlp-close", daemon=True)
            for provider in (self._tracers, self._meters)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _build_resource(version: str) -> Resource:
    own = Resource.create(
        {
            "service.name": "dragoman",
            "service.version": version,
            # Two processes that send cumulative metrics of the same name must differ in
            # their resource.
            "service.instance.id": str(uuid.uuid4()),
        }
    )
    # The variables take precedence.
    return own.merge(OTELResourceDetector().detect())
