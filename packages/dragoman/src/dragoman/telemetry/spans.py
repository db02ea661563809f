"""Spans of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from ..core.trace_context import SpanContext

if TYPE_CHECKING:
    pass


AttributeValue = str | bool | int | float | Sequence[str]


Attributes = Mapping[str, AttributeValue]


class SpanKind(IntEnum):
    """The kind of a span, with OTLP's numbers."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span:
    """A span. It does not change after its end.

    context: the context that its children refer to; if the trace is not sampled, it is
        only passed on.
    parent_id: span id of the parent; empty for a root span.
    start, end: Unix nanoseconds.
    error: reason of the failure; None without one.
    """

    __slots__ = ("attributes", "context", "end", "error", "kind", "name", "parent_id", "start")

    def __init__(
        self, name: str, kind: SpanKind, context: SpanContext, parent_id: str, start: int
    ) -> None:
        self.name = name
        self.kind = kind
        self.context = context
        self.parent_id = parent_id
        self.start = start
        self.end = 0
        self.attributes: dict[str, AttributeValue] = {}
        self.error: str | None = None


class Tracer:
    """Starts and ends spans.

    export: receives ended spans; must not block.
    now: returns Unix seconds.
    random_hex: returns the given number of random hexadecimal digits.
    ratio: share of new traces that are recorded, 0 to 1. For a request with
        `traceparent` the client decides.
    """

    def __init__(
        self,
        export: Callable[[Span], None],
        now: Callable[[], float],
        random_hex: Callable[[int], str],
        ratio: float = 1.0,
    ) -> None:
        self._export = export
        self._now = now
        self._random_hex = random_hex
        self._ratio = ratio

    def start(
        self, name: str, kind: SpanKind, parent: SpanContext | None, attributes: Attributes
    ) -> Span:
        if parent is None:
            trace_id = self._random_hex(32)
            # Sampled by the trace id, so that all servers of a trace decide alike.
            is_sampled = int(trace_id[16:], 16) < self._ratio * 2**64
            state = ""
            parent_id = ""
        else:
            trace_id = parent.trace_id
            is_sampled = parent.is_sampled
            state = parent.state
            parent_id = parent.span_id
        context = SpanContext(trace_id, self._random_hex(16), is_sampled, state)
        span = Span(name, kind, context, parent_id, self._read_clock())
        if is_sampled:
            span.attributes |= attributes
        return span

    def end(self, span: Span, attributes: Attributes, error: str | None = None) -> None:
        """End a span, and export it if it is sampled.

        error: a short reason, such as a status or an error code; never text that could
            quote a prompt.
        """
        if not span.context.is_sampled:
            return
        span.attributes |= attributes
        span.end = self._read_clock()
        span.error = error
        self._export(span)

    def _read_clock(self) -> int:
        # Rounded to microseconds: a float of Unix seconds has a resolution of about 0.2
        # microseconds.
        return round(self._now() * 1_000_000) * 1000
