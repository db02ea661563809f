"""The spans of a server: what its HTTP side knows of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from ..core.trace_context import SpanContext

AttributeValue = str | bool | int | float | Sequence[str]


Attributes = Mapping[str, AttributeValue]


SpanKind = Literal["server", "client"]


class Span(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> SpanContext:
        """The context that its children refer to; if the trace is not sampled, it is
        only passed on.
        """
        ...

    def end(self, attributes: Attributes, error: str | None = None) -> None:
        """End the span, and export it if it is sampled.

        error: a short reason, such as a status or an error code; never text that could
            quote a prompt.
        """
        ...


class Tracer(Protocol):
    """Starts spans."""

    def start(
        self, name: str, kind: SpanKind, parent: SpanContext | None, attributes: Attributes
    ) -> Span: ...


class Histograms(Protocol):
    """Histograms by name."""

    def define(self, name: str, description: str, unit: str, bounds: Sequence[float]) -> None: ...

    def observe(self, name: str, value: float, attributes: Attributes) -> None: ...
