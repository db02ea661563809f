"""Outputs of each model family and their expected parses: the files in golden/, one
file per family.

    raw text
    =====
    text "JSON string"                  or reasoning
    call NAME {JSON} [id=ID]

Cases are separated by a line of five dashes. Arguments are compared as values.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from dragoman.core.message import FunctionTool

HERE = Path(__file__).with_name("golden")

WEATHER = FunctionTool(
    "get_weather",
    None,
    json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
            },
            "required": ["city"],
            "additionalProperties": False,
        }
    ),
)
NOTE = FunctionTool(
    "note",
    None,
    json.dumps(
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object"},
            },
            "required": ["text"],
        }
    ),
)
TOOLS = (WEATHER, NOTE)


class ExpectedPart(Struct, frozen=True):
    """An expected part.

    kind: text, reasoning or call.
    value: the text, or the arguments.
    """

    kind: str
    value: object
    name: str = ""
    id: str | None = None


class Case(Struct, frozen=True):
    """A golden case.

    prompt_tail: the end of the prompt, if the first line of the case is `tail "JSON
        string"`.
    """

    raw: str
    expected: tuple[ExpectedPart, ...]
    tail: str = "assistant\n"


def golden(name: str) -> list[Case]:
    source = (HERE / f"{name}.txt").read_text(encoding="utf-8")
    return [_case(part) for part in source.split("-----\n")]


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.txt"))


def _case(source: str) -> Case:
    tail = "assistant\n"
    if source.startswith("tail "):
        first, _, source = source.partition("\n")
        tail = json.loads(first.removeprefix("tail "))
    raw, _, expected = source.partition("\n=====\n")
    return Case(raw, tuple(_parse_part(line) for line in expected.splitlines()), tail)


def _parse_part(line: str) -> ExpectedPart:
    kind, _, rest = line.partition(" ")
    if kind != "call":
        return ExpectedPart(kind, json.loads(rest))
    name, _, rest = rest.partition(" ")
    arguments, length = json.JSONDecoder().raw_decode(rest)
    id = rest[length:].strip().removeprefix("id=")
    return ExpectedPart(kind, arguments, name, id or None)
