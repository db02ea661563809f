"""W3C Trace Context: the span that a request belongs to.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re

from msgspec import Struct

# Version, trace id, parent span id and flags; later versions may append fields.
_TRACEPARENT = re.compile(
    r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL
)


_MAX_STATE = 512
"""Maximum characters of a `tracestate`: the standard's minimum for what must be
propagated; longer ones are dropped.
"""


class SpanContext(Struct, frozen=True):
    """The identity of a span, which is sent to other servers.

    trace_id, span_id: lower-case hexadecimal.
    state: the vendors' `tracestate`, passed on unchanged.
    """

    trace_id: str
    span_id: str
    is_sampled: bool
    state: str = ""

    def build_headers(self) -> dict[str, str]:
        headers = {
            "traceparent": f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"
        }
        return headers | {"tracestate": self.state} if self.state else headers


def parse_trace_context(traceparent: str | None, tracestate: str = "") -> SpanContext | None:
    """Parse the headers of a request; None for absent or invalid ones, which begin a
    new trace.
    """
    match = None if traceparent is None else _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, appended_fields = match.groups()
    # Version 00 has no appended fields, and ff is forbidden.
    if (
        version == "ff"
        or (version == "00" and appended_fields)
        or not trace_id.strip("0")
        or not span_id.strip("0")
    ):
        return None
    # An invalid `tracestate` must not affect `traceparent`, so only the former is
    # dropped. It is passed on as a header, into which line breaks would inject others.
    is_plain = len(tracestate) <= _MAX_STATE and tracestate.isascii() and tracestate.isprintable()
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1), tracestate if is_plain else "")
