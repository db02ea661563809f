"""Every model family: its outputs are parsed correctly with any chunking, and its chat
templates are recognized.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.core.events import TextDelta
from dragoman.core.message import Reasoning, Text, ToolCall
from dragoman.core.reply import Choice
from dragoman.core.syntax import Parser
from dragoman.parsers import registry
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.harmony import HARMONY_REASONING_NAMES, HARMONY_TOOL_NAMES
from dragoman.parsers.reasoning_families import REASONING_FAMILIES

from .goldens import TOOLS, Case, ExpectedPart, golden, names
from .parsing import context, fold, parse, tool_format

CALLERS = [*(family.names[0] for family in CALL_FAMILIES), HARMONY_TOOL_NAMES[0]]
CASES = [
    pytest.param(name, case, id=f"{name} {n}")
    for name in CALLERS
    for n, case in enumerate(golden(name))
]


def parser(name: str, case: Case) -> Parser:
    return tool_format(name).create_parser(context(*TOOLS, tail=case.tail))


def summarize_parts(choice: Choice, case: Case) -> tuple[ExpectedPart, ...]:
    """Return the parts, with the ids that the case mentions."""
    expected_ids = {one.id for one in case.expected}
    out: list[ExpectedPart] = []
    for part in choice.parts:
        match part:
            case Text(text):
                out.append(ExpectedPart("text", text))
            case Reasoning(text):
                out.append(ExpectedPart("reasoning", text))
            case ToolCall(id, name, arguments):
                out.append(
                    ExpectedPart(
                        "call", json.loads(arguments), name, id if id in expected_ids else None
                    )
                )
            case _:
                raise AssertionError(part)
    return tuple(out)


THINKERS = [family.names[0] for family in REASONING_FAMILIES]
THOUGHT_CASES = [
    pytest.param(name, case, id=f"{name} {n}")
    for name in THINKERS
    for n, case in enumerate(golden(f"reasoning/{name}"))
]


@pytest.mark.parametrize(("name", "case"), THOUGHT_CASES)
def test_reasoning_is_separated_from_text(name: str, case: Case):
    for pieces in ([case.raw], [*case.raw]):
        format = registry.find_reasoning_format(name)
        assert format is not None
        read = format.create_parser(context(tail=case.tail))
        assert (
            summarize_parts(fold(parse(read, [TextDelta(0, piece) for piece in pieces])), case)
            == case.expected
        )


@pytest.mark.parametrize(("name", "case"), CASES)
def test_transcript_is_parsed_into_expected_parts(name: str, case: Case):
    assert (
        summarize_parts(fold(parse(parser(name, case), [TextDelta(0, case.raw)])), case)
        == case.expected
    )
    each = [TextDelta(0, char) for char in case.raw]
    assert summarize_parts(fold(parse(parser(name, case), each)), case) == case.expected


def templates() -> Iterator[tuple[str, str, str | None, str | None]]:
    """Read chat_templates.txt: the model, its shortened template, and the names of its
    parsers.
    """
    source = Path(__file__).with_name("chat_templates.txt").read_text(encoding="utf-8")
    for part in source.split("\n## ")[1:]:
        title, _, template = part.partition("\n")
        model, reasoning, tools = title.split(" | ")
        yield (
            model,
            template.rstrip("\n"),
            None if reasoning == "-" else reasoning,
            None if tools == "-" else tools,
        )


SIGNS = list(templates())


@pytest.mark.parametrize(
    ("template", "reasoning", "tools"),
    [sign[1:] for sign in SIGNS],
    ids=[sign[0] for sign in SIGNS],
)
def test_detect_formats_recognizes_family_template(
    template: str, reasoning: str | None, tools: str | None
):
    assert registry.detect_formats(template) == (reasoning, tools)


def test_all_families_but_two_are_detected_by_template():
    assert set(CALLERS) == set(names())
    unseen = set(CALLERS) - {tools for *_, tools in SIGNS}
    assert unseen == {"xlam", "mimo"}


def test_parser_names_are_unique():
    for families, more in (
        (CALL_FAMILIES, HARMONY_TOOL_NAMES),
        (REASONING_FAMILIES, HARMONY_REASONING_NAMES),
    ):
        every = [*more, *(name for family in families for name in family.names)]
        assert len(every) == len(set(every))
