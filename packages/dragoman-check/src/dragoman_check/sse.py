"""Server-sent events and JSON Lines, as a lenient client reads them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

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
    """Parse server-sent events with any line ending, to the letter: unlike the clients'
    decoder, which skips empty events and reads bare JSON. See
    https://html.spec.whatwg.org/multipage/server-sent-events.html
    """
    events: list[SseEvent] = []
    for block in normalize_sse(data).decode(errors="replace").split("\n\n"):
        fields = [
            line.partition(":") for line in block.split("\n") if line and not line.startswith(":")
        ]
        texts = [value.removeprefix(" ") for name, _, value in fields if name == "data"]
        names = [value.removeprefix(" ") for name, _, value in fields if name == "event"]
        if texts:
            events.append(SseEvent(names[-1] if names else None, "\n".join(texts)))
    return events


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
