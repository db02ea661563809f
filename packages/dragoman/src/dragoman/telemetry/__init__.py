"""OpenTelemetry: spans and histograms, exported over OTLP/HTTP."""
