"""Logging, configured from the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from .._version import VERSION
from ..serving.endpoint import LOG_FIELDS
from ..serving.tracing import Telemetry
from ..settings import Settings, SettingsError
from ..telemetry.gen_ai_metrics import GenAiMetrics
from ..telemetry.otlp_settings import find_receivers

ENGINE = "engine"
"""Denotes, in place of a worker's number, the process of an engine that several workers
share.
"""


class TextFormatter(logging.Formatter):
    """Formats records as lines of text.

    worker: number of this worker process, or ENGINE; None if there is only one process.
    """

    def __init__(self, worker: int | str | None = None) -> None:
        process = "" if worker is None else f"[{describe_process(worker)}] "
        super().__init__(
            f"%(asctime)s %(levelname)s {process}%(name)s: %(message)s", "%Y-%m-%d %H:%M:%S%z"
        )


class JsonFormatter(logging.Formatter):
    """Formats records as one JSON object per line: time (RFC 3339, UTC), level, logger,
    message and request fields.

    worker: see TextFormatter.
    """

    def __init__(self, worker: int | str | None = None) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._worker is not None:
            line["worker"] = self._worker
        line |= getattr(record, LOG_FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # A lone surrogate, as in some file names, cannot be encoded as UTF-8.
        return msgspec.json.encode(
            {
                name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
                for name, value in line.items()
            }
        ).decode()


def configure_logging(settings: Settings) -> None:
    """Configure the root logger, unless it has handlers already."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])


def describe_process(worker: int | str) -> str:
    return f"worker {worker}" if isinstance(worker, int) else worker


def name_worker(number: int | str) -> None:
    """Add the number of this worker process, or ENGINE, to each log line, unless a
    program set its own formatter.
    """
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, TextFormatter | JsonFormatter):
            handler.setFormatter(type(handler.formatter)(number))


def build_telemetry(settings: Settings, environment: Mapping[str, str]) -> Telemetry | None:
    """Build the telemetry and start its export; None if no OTLP endpoint is configured.

    Raises:
        SettingsError: an address or a header is invalid, or the SDK is not installed.
    """
    try:
        receivers = find_receivers(settings.otlp_endpoint, environment)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    if receivers is None:
        return None
    try:
        from ..telemetry.otlp_export import OtlpExport  # noqa: PLC0415 - needs an optional dependency
    except ImportError as error:
        raise SettingsError(
            "otlp-endpoint: OpenTelemetry needs `pip install 'dragoman[otel]'`; OTEL_SDK_DISABLED="
            "true starts without it."
        ) from error
    try:
        export = OtlpExport(receivers, VERSION, settings.trace_sample_ratio)
    except ValueError as error:
        raise SettingsError(f"OpenTelemetry: a variable OTEL_* is invalid: {error}") from error
    return Telemetry(export.tracer, GenAiMetrics(export.histograms), export.close)
