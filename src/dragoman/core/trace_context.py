"""W3C Trace Context: which span of which trace a request belongs to (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import re
from contextvars import ContextVar

from msgspec import Struct

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_MAX_STATE = 512
"""Characters of a `tracestate` that must be passed on at least; longer ones are dropped."""


class SpanContext(Struct, frozen=True):
    """A span as other servers refer to it.

    trace_id, span_id: lower-case hexadecimal.
    state: the vendors' `tracestate`, passed on unchanged.
    """

    trace_id: str
    span_id: str
    is_sampled: bool
    state: str = ""

    def build_headers(self) -> dict[str, str]:
        headers = {"traceparent": f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"}
        return headers | {"tracestate": self.state} if self.state else headers


def parse_trace_context(traceparent: str | None, tracestate: str = "") -> SpanContext | None:
    """Parse the headers of a request; None for absent or invalid ones, which begin a new trace."""
    match = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    # Later versions may append fields; version 00 has none, and ff is forbidden.
    if version == "ff" or (version == "00" and rest) or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    # An invalid `tracestate` must not affect `traceparent`, so it alone is dropped. It is sent on as a header: line
    # breaks in it would add headers of their own.
    is_plain = len(tracestate) <= _MAX_STATE and tracestate.isascii() and tracestate.isprintable()
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1), tracestate if is_plain else "")


CURRENT_SPAN: ContextVar[SpanContext | None] = ContextVar("current_span", default=None)
"""The span on whose behalf this task works, for requests to other servers."""
