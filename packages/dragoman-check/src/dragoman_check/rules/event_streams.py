"""Parsers of server-sent events, unnamed as in OpenAI's older APIs, or named."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .json_values import JsonObject, Violation, require, require_object

DONE = "[DONE]"


class ParsedStream:
    """A parsed stream of unnamed events. Raises Violation if its framing is invalid.

    payloads: the JSON objects of the events.
    done: the stream ended with [DONE], after which nothing may follow.
    """

    def __init__(self, data: bytes) -> None:
        self.payloads: list[JsonObject] = []
        self.done = False
        for block in map(_parse_data, _split_events(data)):
            require(not self.done, f"an event follows {DONE}")
            if block == DONE:
                self.done = True
            else:
                self.payloads.append(parse_object(block, "the payload"))


def parse_named_events(data: bytes) -> Iterator[JsonObject]:
    """Parse the payloads of named events, each of which repeats the event's name as
    `type`. Raises Violation.
    """
    for block in _split_events(data):
        name, newline, data_line = block.partition("\n")
        require(newline and name.startswith("event: "), f"an event has no name: {block[:40]!r}")
        payload = parse_object(_parse_data(data_line), "the payload")
        event_name = name.removeprefix("event: ")
        require(
            payload.get("type") == event_name,
            f"the event {event_name} has the type {payload.get('type')!r}",
        )
        yield payload


def _split_events(data: bytes) -> Iterator[str]:
    """Split a stream into events. Comments, which serve as keepalives, are skipped."""
    text = data.decode()
    require(not text or text.endswith("\n\n"), "the stream ends inside an event")
    # Drop the last piece, the empty string after the final blank line.
    return (block for block in text.split("\n\n")[:-1] if not block.startswith(":"))


def _parse_data(block: str) -> str:
    require(block.startswith("data: "), f"not a data event: {block[:40]!r}")
    # Some clients split lines at other characters than \n, too; str.splitlines covers
    # all of them.
    require(len(block.splitlines()) == 1, f"an event has several lines: {block[:40]!r}")
    return block.removeprefix("data: ")


def parse_object(text: str, location: str) -> JsonObject:
    """Parse a JSON object. Raises Violation."""
    try:
        return require_object(json.loads(text, parse_constant=_reject_constant), location)
    # RecursionError: the JSON nests too deeply.
    except (ValueError, RecursionError) as error:
        raise Violation(f"{location} is not JSON: {error}: {text[:40]!r}") from None


def _reject_constant(name: str) -> float:
    raise Violation(f"{name} is not JSON")
