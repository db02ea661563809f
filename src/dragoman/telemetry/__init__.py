"""OpenTelemetry traces and metrics over OTLP/HTTP, without OpenTelemetry's SDK. Knows no HTTP server and no engine."""

from .exporter import GenAiMetrics, MetricSet, OtlpExporter, OtlpSettings, read_otlp_environment
from .tracer import Attributes, Span, SpanKind, Tracer

__all__ = [
    "Attributes",
    "GenAiMetrics",
    "MetricSet",
    "OtlpExporter",
    "OtlpSettings",
    "Span",
    "SpanKind",
    "Tracer",
    "read_otlp_environment",
]
