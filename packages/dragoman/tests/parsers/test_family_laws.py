"""The laws of `test_laws`, over every registered parser."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dragoman.core.events import FinishReason, TextDelta, Token
from dragoman.core.syntax import Parser
from dragoman.parsers import registry
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.delimited_calls import DelimitedCallFormat
from dragoman.parsers.reasoning_families import REASONING_FAMILIES

from .goldens import TOOLS, golden
from .parsing import (
    END,
    PATCH,
    context,
    cut,
    deltas,
    fold,
    parse,
    plain,
    regroup,
    shape,
    tool_format,
)
from .test_laws import operations

SCRAPS = [
    "<",
    "</",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    '"',
    "'",
    "\\",
    ",",
    ":",
    "=",
    " ",
    "\n",
    "x",
    "é",
    "1",
    "null",
    "True",
]
WORDS = [
    "get_weather",
    "note",
    "patch",
    "rm",
    "city",
    "days",
    "where",
    "input",
    '{"x": 1}',
    '{"a"',
    "\\u00e9",
    "\\ud83d",
]
SHAPES = {family.names[0]: type(family.syntax).__name__.lower() for family in CALL_FAMILIES} | {
    "openai": "harmony"
}
every_shape = pytest.mark.parametrize("kind", sorted(set(SHAPES.values())))
thinkers = st.sampled_from(sorted({family.names[0] for family in REASONING_FAMILIES}))


callers_of_all = st.sampled_from(sorted(SHAPES))
callers_but_harmony = st.sampled_from(
    sorted(name for name, shape in SHAPES.items() if shape != "harmony")
)


def callers(kind: str) -> st.SearchStrategy[str]:
    """Return the families with this syntax of calls."""
    return st.sampled_from([name for name, shape in SHAPES.items() if shape == kind])


def calling(name: str, added: Sequence[str] = (), tail: str = "assistant\n") -> Parser:
    return tool_format(name, added).create_parser(context(*TOOLS, PATCH, tail=tail))


def thinking(name: str, tail: str = "assistant\n", added: Sequence[str] = ()) -> Parser:
    found = registry.find_reasoning_format(name, added)
    assert found is not None
    return found.create_parser(context(*TOOLS, tail=tail))


def raws(name: str) -> list[str]:
    """Return the transcripts whose prompt contains no beginning of the answer."""
    return [case.raw for case in golden(name) if not case.tail.endswith(" ")]


def bits(name: str) -> st.SearchStrategy[str]:
    """Return pieces of answers of this family: its markers, and parts of its
    transcripts.
    """
    marks = [*tool_format(name).markers, *tool_format(name).call_openers]
    full = raws(name)
    pieces = [
        piece for raw in full for piece in re.split(r"(?<=[>\])}])|(?=[<\[({])", raw) if piece
    ]
    one = st.sampled_from(marks or [" "]) | st.sampled_from(pieces) | st.sampled_from(full)
    return one | st.sampled_from(SCRAPS) | st.sampled_from(WORDS) | st.text(max_size=3)


def answers(name: str) -> st.SearchStrategy[str]:
    return st.lists(bits(name), max_size=8).map("".join)


def has_empty_section(name: str, output: str) -> bool:
    """Whether the text has an empty section of calls, which is not returned as text."""
    format = tool_format(name)
    if not isinstance(format, DelimitedCallFormat) or not format.delimiters.section_end:
        return False
    starts = "|".join(map(re.escape, format.delimiters.section_starts))
    inner = "|".join(map(re.escape, format.delimiters.inner_markers))
    return (
        re.search(rf"(?:{starts})(?:{inner}|\s)*{re.escape(format.delimiters.section_end)}", output)
        is not None
    )


@every_shape
@given(st.data())
def test_tool_parser_result_is_independent_of_chunking(kind: str, data: st.DataObject):
    name = data.draw(callers(kind))
    output = data.draw(answers(name))
    full = shape(fold(parse(calling(name), deltas([output] if output else []))))
    assert shape(fold(parse(calling(name), deltas(cut(data.draw, output))))) == full
    assert shape(fold(parse(calling(name), deltas(output)))) == full


@given(callers_of_all, st.data())
def test_tool_parser_any_split_point_gives_same_result(name: str, data: st.DataObject):
    raw = data.draw(st.sampled_from(raws(name)))
    at = data.draw(st.integers(1, len(raw) - 1))
    full = shape(fold(parse(calling(name), deltas([raw]))))
    assert shape(fold(parse(calling(name), deltas([raw[:at], raw[at:]])))) == full


@given(callers_of_all, st.data())
def test_tool_parser_preserves_all_tokens_in_order(name: str, data: st.DataObject):
    pieces = cut(data.draw, data.draw(answers(name)))
    assert [one.text for one in fold(parse(calling(name), deltas(pieces))).tokens] == [
        *pieces,
        END.text,
    ]


@given(callers_but_harmony, st.data())
def test_undeclared_tool_call_is_text_verbatim(name: str, data: st.DataObject):
    """Markers in ordinary text and calls of undeclared tools are returned unchanged as
    text.
    """
    output = data.draw(answers(name))
    assume(not has_empty_section(name, output))
    parser = tool_format(name).create_parser(context("another"))
    assert fold(parse(parser, deltas(cut(data.draw, output)))).join_text() == output


@given(callers_of_all, st.data())
def test_truncated_output_keeps_complete_calls(name: str, data: st.DataObject):
    raw = data.draw(st.sampled_from(raws(name)))
    at = data.draw(st.integers(0, len(raw)))
    parts = [part for part in shape(fold(parse(calling(name), deltas([raw])))) if part[0] == "call"]
    begun = fold(parse(calling(name), deltas([raw[:at]] if at else []), FinishReason.LENGTH))
    calls = [part for part in shape(begun) if part[0] == "call"]
    assert calls[:-1] == parts[: max(len(calls) - 1, 0)]
    assert [call[1] for call in calls] == [call[1] for call in parts[: len(calls)]]
    if calls:  # what was held because its meaning was still open is there as it was written
        rest = beyond(parts[len(calls) - 1][2], calls[-1][2])
        assert raw[:at].endswith(rest) or json.dumps(raw[:at])[:-1].endswith(rest)


def beyond(one: str, other: str) -> str:
    """Return the second text without the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return other[next((n for n, (a, b) in pairs if a != b), min(len(one), len(other))) :]


@given(callers_of_all, st.data())
def test_tool_parser_result_is_independent_of_token_grouping(name: str, data: st.DataObject):
    """Markers are distinguished from similar text, however tokens share deltas."""
    added = [mark for mark in tool_format(name).call_openers if mark[0] in "<["]
    known = [Token(n, text, special=True) for n, text in enumerate(added)]
    words = [
        Token(100 + n, text)
        for n, text in enumerate([*SCRAPS, *WORDS, *(mark[:3] for mark in added)])
    ]
    split = [
        Token(200 + n, mark[at:][:4])
        for mark in added
        for n, at in enumerate(range(0, len(mark), 4))
    ]
    tokens = data.draw(st.lists(st.sampled_from([*known, *words, *split]), max_size=12))
    each = [TextDelta(0, one.text, (one,)) for one in tokens]
    regrouped = fold(parse(calling(name, added), regroup(data.draw, tokens)))
    assert shape(regrouped) == shape(fold(parse(calling(name, added), each)))
    assert plain(regrouped) == [*tokens, END]


def endless(name: str) -> list[tuple[str, str]]:
    """Return texts that could repeat forever: each marker, repeatedly, also inside a
    call.
    """
    format = tool_format(name)
    marks = tuple(dict.fromkeys((*format.markers, *format.call_openers)))
    raw = raws(name)[0]
    inside = [
        raw[: raw.index(word) + len(word)]
        for word in ("Par", "days", "He said", "tru")
        if word in raw
    ]
    units = [
        *marks,
        *(mark[:-1] for mark in marks if len(mark) > 1),
        "x",
        "\n",
        " ",
        "\\",
        '"',
        "[",
        "{",
        "(",
        "1",
        "a,",
    ]
    return [
        ("", raw + "\n"),
        *(("", unit) for unit in units),
        *((head, unit) for head in inside for unit in units),
    ]


@every_shape
@given(st.data())
def test_tool_parser_time_is_linear(kind: str, data: st.DataObject):
    """Function calls are counted instead of time, so that the test is independent of
    the machine.
    """
    name = data.draw(callers(kind))
    head, unit = data.draw(st.sampled_from(endless(name)))
    full = data.draw(st.booleans())

    def work(n: int) -> int:
        pieces = [head + unit * n] if full else [head, *[unit] * n]
        events = deltas(piece for piece in pieces if piece)
        parser = calling(name)
        return operations(lambda: [parser.feed(event) for event in events])

    assert work(200) < 11 * work(20) + 200


def tails(name: str) -> list[str]:
    found = registry.find_reasoning_format(name)
    assert found is not None
    thought = found.syntax
    return [
        "assistant\n",
        thought.begin,
        thought.begin + "\n",
        thought.begin + thought.end,
        "x" + thought.end + "\n\n",
    ]


def thoughts(name: str) -> st.SearchStrategy[str]:
    found = registry.find_reasoning_format(name)
    assert found is not None
    marks = [
        mark
        for mark in (*found.markers, found.syntax.end_suffix, found.syntax.answer_prefix)
        if mark
    ]
    halves = [half for mark in marks for half in (mark[:4], mark[4:]) if half]
    one = (
        st.sampled_from([*marks, *halves])
        | st.sampled_from(["\n", "\n\n", " ", "x", "<", "é"])
        | st.text(max_size=3)
    )
    return st.lists(one, max_size=10).map("".join)


@given(st.data())
def test_reasoning_parser_result_is_independent_of_chunking(data: st.DataObject):
    name = data.draw(thinkers)
    output = data.draw(thoughts(name))
    tail = data.draw(st.sampled_from(tails(name)))
    full = fold(parse(thinking(name, tail), deltas([output] if output else [])))
    pieces = cut(data.draw, output)
    other = fold(parse(thinking(name, tail), deltas(pieces)))
    assert shape(other) == shape(full)
    assert [one.text for one in other.tokens] == [*pieces, END.text]


@given(st.data())
def test_reasoning_parser_removes_only_markers_and_whitespace(data: st.DataObject):
    name = data.draw(thinkers)
    output = data.draw(thoughts(name))
    tail = data.draw(st.sampled_from(tails(name)))
    found = registry.find_reasoning_format(name)
    assert found is not None
    choice = fold(parse(thinking(name, tail), deltas(cut(data.draw, output))))
    rest = [
        char
        for char in "".join((choice.join_reasoning(), choice.join_text()))
        if not char.isspace()
    ]
    plain = output
    for mark in found.markers:
        plain = plain.replace(mark, "")
    assert len(rest) >= len([char for char in plain if not char.isspace()]) - len(
        "".join(found.markers)
    )
    assert set(rest) <= set(output) | set("".join(found.markers))
