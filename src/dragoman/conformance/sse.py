"""A parser of server-sent events, unnamed as in OpenAI's older dialects and named. Knows nothing of payloads."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .checks import Json, Violation, require, require_object

DONE = "[DONE]"


class ParsedStream:
    """The payloads of a stream. done: it ended with [DONE], after which nothing may follow."""

    def __init__(self, data: bytes) -> None:
        self.payloads: list[Json] = []
        self.done = False
        for block in map(_parse_data, _split_events(data)):
            require(not self.done, f"an event after {DONE}")
            if block == DONE:
                self.done = True
            else:
                self.payloads.append(_parse_payload(block))


def parse_named_events(data: bytes) -> Iterator[Json]:
    """Parse the payloads of named events. Each repeats its name as `type`."""
    for block in _split_events(data):
        name, newline, data_line = block.partition("\n")
        require(newline and name.startswith("event: "), f"an event without a name: {block[:40]!r}")
        payload = _parse_payload(_parse_data(data_line))
        event_name = name.removeprefix("event: ")
        require(
            payload.get("type") == event_name, f"an event named {event_name} says that it is {payload.get('type')!r}"
        )
        yield payload


def _split_events(data: bytes) -> Iterator[str]:
    """Split a stream into events. Comments, which serve as keepalives, are skipped."""
    text = data.decode()
    require(not text or text.endswith("\n\n"), "the stream ends inside an event")
    return (block for block in text.split("\n\n")[:-1] if not block.startswith(":"))


def _parse_data(block: str) -> str:
    require(block.startswith("data: "), f"not a data event: {block[:40]!r}")
    # Some clients' line readers split at more than \n: str.splitlines is the strictest of them.
    require(len(block.splitlines()) == 1, f"one event in several lines: {block[:40]!r}")
    return block.removeprefix("data: ")


def _parse_payload(block: str) -> Json:
    try:
        return require_object(json.loads(block, parse_constant=_reject_constant), "the payload")
    except ValueError as error:
        raise Violation(f"not JSON: {error}: {block[:40]!r}") from None


def _reject_constant(name: str) -> float:
    raise Violation(f"{name} is not JSON")
