"""Spans and histograms of OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.metrics import Histogram, Meter
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from ..core import trace_context
from . import spans
from .spans import Attributes, AttributeValue

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class SdkSpan:
    """A span of the SDK.

    state: the client's `tracestate`, which is passed on unchanged.
    """

    def __init__(self, span: Span, state: str) -> None:
        self._span = span
        self._state = state

    @property
    def context(self) -> trace_context.SpanContext:
        context = self._span.get_span_context()
        return trace_context.SpanContext(
            f"{context.trace_id:032x}",
            f"{context.span_id:016x}",
            context.trace_flags.sampled,
            self._state,
        )

    def end(self, attributes: Attributes, error: str | None = None) -> None:
        self._span.set_attributes(_clean(attributes))
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class SdkTracer:
    """Starts spans of the SDK. Its sampler decides on new traces; the client decides on
    those of requests with `traceparent`.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def start(
        self,
        name: str,
        kind: spans.SpanKind,
        parent: trace_context.SpanContext | None,
        attributes: Attributes,
    ) -> SdkSpan:
        remote = NonRecordingSpan(_convert_context(parent))
        span = self._tracer.start_span(
            _clean_text(name),
            # Never the context of this task: a span has the parent that it is given.
            context=set_span_in_context(remote),
            kind=_KINDS[kind],
            attributes=_clean(attributes),
        )
        return SdkSpan(span, "" if parent is None else parent.state)


class SdkHistograms:
    """Histograms of the SDK, which bounds the series of each."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._histograms: dict[str, Histogram] = {}

    def define(self, name: str, description: str, unit: str, bounds: Sequence[float]) -> None:
        self._histograms[name] = self._meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=bounds
        )

    def observe(self, name: str, value: float, attributes: Attributes) -> None:
        self._histograms[name].record(value, _clean(attributes))


def _convert_context(parent: trace_context.SpanContext | None) -> SpanContext:
    """Return the SDK's form of a parent; an invalid context, which begins a new trace,
    for None.
    """
    return SpanContext(
        0 if parent is None else int(parent.trace_id, 16),
        0 if parent is None else int(parent.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent is not None and parent.is_sampled)),
        trace_state=None if parent is None else TraceState.from_header([parent.state]),
    )


def _clean(attributes: Attributes) -> dict[str, AttributeValue]:
    return {
        name: _clean_text(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


def _clean_text(text: str) -> str:
    # A client's text can contain lone surrogates, for which the exporter would drop the
    # whole batch.
    return text.encode("utf-8", "replace").decode()
