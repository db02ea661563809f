"""Server-sent events, as OpenAI's older dialects send them and with names. Knows nothing of what the payloads mean."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .violation import Json, Violation, an_object, must

DONE = "[DONE]"


class Stream:
    """A stream cut into its payloads. done: it ended with [DONE]; nothing may follow that."""

    def __init__(self, data: bytes) -> None:
        self.payloads: list[Json] = []
        self.done = False
        for block in _blocks(data):
            must(not self.done, f"an event after {DONE}")
            if block == DONE:
                self.done = True
            else:
                self.payloads.append(_payload(block))


def named(data: bytes) -> Iterator[Json]:
    """The payloads of events that have a name: each says it again as its `type`."""
    for block in _events(data):
        name, newline, rest = block.partition("\n")
        must(newline and name.startswith("event: "), f"an event without a name: {block[:40]!r}")
        payload = _payload(_data(rest))
        told = name.removeprefix("event: ")
        must(payload.get("type") == told, f"an event named {told} says that it is {payload.get('type')!r}")
        yield payload


def _blocks(data: bytes) -> Iterator[str]:
    """The data of each event."""
    return (_data(block) for block in _events(data))


def _events(data: bytes) -> Iterator[str]:
    """A comment keeps a connection alive and says nothing."""
    text = data.decode()
    must(not text or text.endswith("\n\n"), "the stream ends inside an event")
    return (block for block in text.split("\n\n")[:-1] if not block.startswith(":"))


def _data(block: str) -> str:
    must(block.startswith("data: "), f"not a data event: {block[:40]!r}")
    # Line readers of some clients split at more than \n: str.splitlines is the strictest of them.
    must(len(block.splitlines()) == 1, f"one event in several lines: {block[:40]!r}")
    return block.removeprefix("data: ")


def _payload(block: str) -> Json:
    try:
        return an_object(json.loads(block, parse_constant=_refuse), "the payload")
    except ValueError as error:
        raise Violation(f"not JSON: {error}: {block[:40]!r}") from None


def _refuse(name: str) -> float:
    raise Violation(f"{name} is not JSON")
