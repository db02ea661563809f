"""Server-sent events and JSON Lines, as a lenient client reads them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dragoman_http import SseDecoder

from .rules.json_values import JsonObject, Violation, require_object

_FIELD_NAME = re.compile(rb"^(data|event):(?! )", re.MULTILINE)


def normalize_sse(data: bytes) -> bytes:
    """Rewrite a stream of server-sent events with `\\n` and a space after each colon,
    as `rules` expects.
    """
    return _FIELD_NAME.sub(rb"\1: ", data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))


@dataclass(frozen=True, slots=True)
class SseEvent:
    name: str | None
    data: str


def parse_sse(data: bytes) -> list[SseEvent]:
    """Parse server-sent events with any line ending. See
    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    decoder = SseDecoder(len(data) + 2)
    # A last event may lack its blank line.
    events = decoder.feed(data + b"\n\n")
    return [
        SseEvent(name or None, event.decode(errors="replace"))
        for event, name in zip(events, decoder.names, strict=True)
    ]


def parse_chunks(data: bytes) -> list[JsonObject]:
    """Parse the JSON objects of server-sent events, without `[DONE]`. Raises
    Violation.
    """
    return [parse_json_object(event.data) for event in parse_sse(data) if event.data != "[DONE]"]


def parse_lines(data: bytes) -> list[JsonObject]:
    """Parse the objects of a stream of JSON Lines. Raises Violation."""
    return [
        parse_json_object(line)
        for line in data.decode(errors="replace").splitlines()
        if line.strip()
    ]


def parse_json_object(text: str) -> JsonObject:
    try:
        return require_object(json.loads(text), "an event")
    except ValueError as error:
        raise Violation(f"an event is not JSON: {error}: {text[:60]!r}") from None
