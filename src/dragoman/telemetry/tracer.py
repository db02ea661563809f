"""Spans: created, given attributes, ended, and handed to an exporter. Ended spans are never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum

from ..core.trace_context import SpanContext

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, AttributeValue]


class SpanKind(IntEnum):
    """As in OTLP."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3


class Span:
    """A span in progress. context: what its children refer to; without sampling it only passes the trace on.

    start, end: Unix nanoseconds.
    error: why it failed; None if it did not.
    """

    __slots__ = ("attributes", "context", "end", "error", "kind", "name", "parent_id", "start")

    def __init__(self, name: str, kind: SpanKind, context: SpanContext, parent_id: str, start: int) -> None:
        self.name, self.kind, self.context, self.parent_id = name, kind, context, parent_id
        self.start, self.end = start, 0
        self.attributes: dict[str, AttributeValue] = {}
        self.error: str | None = None


class Tracer:
    """Starts and ends spans.

    export: takes ended spans; must not block.
    now: Unix seconds.
    random_hex: returns a number of random hexadecimal digits.
    ratio: share of new traces that are recorded. Those of a client that sends `traceparent` follow its decision.
    """

    def __init__(
        self,
        export: Callable[[Span], None],
        now: Callable[[], float],
        random_hex: Callable[[int], str],
        ratio: float = 1.0,
    ) -> None:
        self._export, self._now, self._random_hex, self._ratio = export, now, random_hex, ratio

    def start(self, name: str, kind: SpanKind, parent: SpanContext | None, attributes: Attributes) -> Span:
        if parent is None:
            trace_id = self._random_hex(32)
            # By the trace's id, so that all servers of a trace would decide alike.
            is_sampled, state, parent_id = int(trace_id[16:], 16) < self._ratio * 2**64, "", ""
        else:
            trace_id, is_sampled, state, parent_id = (parent.trace_id, parent.is_sampled, parent.state, parent.span_id)
        context = SpanContext(trace_id, self._random_hex(16), is_sampled, state)
        span = Span(name, kind, context, parent_id, self._read_clock())
        if is_sampled:
            span.attributes |= attributes
        return span

    def end(self, span: Span, attributes: Attributes, error: str | None = None) -> None:
        """error: a short reason, such as a status or an error code; never text that could quote a prompt."""
        if not span.context.is_sampled:
            return
        span.attributes |= attributes
        span.end, span.error = self._read_clock(), error
        self._export(span)

    def _read_clock(self) -> int:
        # In microseconds: a float of Unix seconds has a resolution of about 0.2 of them.
        return round(self._now() * 1_000_000) * 1000
