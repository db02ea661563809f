"""An odd answer of an upstream, and what it means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.engines.upstream.client_answers import Answer, Failure

ADD = (("add", '{"a": 1}'),)
CUT_OFF = Failure("cut off")
CONTRADICTION = Failure("contradicts")
FAILED = Failure("The upstream failed")
OVERLOADED = Failure("overloaded", "overloaded")


class Case(NamedTuple):
    """An upstream's answer. body: the body of its response.

    kind: the kind of the upstream.
    expected: what a client sees, in every dialect.
    """

    kind: str
    name: str
    body: bytes
    expected: Answer | Failure
    content_type: str = "text/event-stream"


def sse(
    *events: dict[str, Any] | str | bytes,
    prefix: str = "",
    line_end: str = "\n",
    field: str = "data: ",
    ends: bool = True,
    names: Sequence[str] = (),
) -> bytes:
    """Build a stream. events: their data, as an object or as text.

    ends: whether a blank line follows the last event.
    names: the names of the first events.
    """
    frames: list[bytes] = []
    for i, event in enumerate(events):
        data = json.dumps(event, ensure_ascii=False) if isinstance(event, dict) else event
        raw = data if isinstance(data, bytes) else data.encode()
        name = names[i] if i < len(names) else ""
        head = f"event: {name}{line_end}" if name else ""
        frames.append(head.encode() + field.encode() + raw)
    end = line_end.encode()
    body = (end + end).join(frames)
    return prefix.encode() + body + (end + end if ends and frames else b"")
