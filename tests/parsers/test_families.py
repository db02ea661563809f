"""Every family of models: what it writes is read as it is meant, however it is cut, and templates give it away."""

from __future__ import annotations

import json

import pytest

from dragoman.core.events import TextDelta
from dragoman.core.message import Reasoning, Text, ToolCall
from dragoman.core.reply import Choice
from dragoman.core.syntax import Parser
from dragoman.parsers.families import CALLS

from .goldens import TOOLS, Case, Said, golden
from .running import context, fold, parse, tool_format

CASES = [
    pytest.param(family.names[0], case, id=f"{family.names[0]} {n}")
    for family in CALLS
    for n, case in enumerate(golden(family.names[0]))
]


def parser(name: str, case: Case) -> Parser:
    return tool_format(name).parser(context(*TOOLS, tail=case.tail))


def said(choice: Choice, case: Case) -> tuple[Said, ...]:
    """The parts, with the ids that the case speaks of."""
    given = {one.id for one in case.said}
    out: list[Said] = []
    for part in choice.parts:
        match part:
            case Text(text):
                out.append(Said("text", text))
            case Reasoning(text):
                out.append(Said("reasoning", text))
            case ToolCall(id, name, arguments):
                out.append(Said("call", json.loads(arguments), name, id if id in given else None))
            case _:
                raise AssertionError(part)
    return tuple(out)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_transcript_is_read_as_it_is_meant(name: str, case: Case):
    assert said(fold(parse(parser(name, case), [TextDelta(0, case.raw)])), case) == case.said
    each = [TextDelta(0, char) for char in case.raw]
    assert said(fold(parse(parser(name, case), each)), case) == case.said
