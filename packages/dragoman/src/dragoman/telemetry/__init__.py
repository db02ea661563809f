"""OpenTelemetry: spans and histograms, exported over OTLP/HTTP by OpenTelemetry's SDK
(the extra `otel`).
"""
