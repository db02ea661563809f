"""Invariants of every parser: chunking does not matter, no token is lost, events are
legal, time is linear.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.events import TextDelta, Token
from dragoman.core.syntax import Parser
from dragoman.parsers import registry
from dragoman.parsers.think import ThinkFormat

from .parsing import (
    END,
    PATCH,
    SPECIAL,
    Make,
    context,
    cut,
    deltas,
    fold,
    parse,
    plain,
    regroup,
    shape,
    token,
    tool_format,
)


def thinking(
    tail: str = "assistant\n", *, unopened: bool = False, added: tuple[str, ...] = ()
) -> Make:
    return lambda: ThinkFormat(starts_implicitly=unopened, added_tokens=added).create_parser(
        context(tail=tail)
    )


def calling(added: tuple[str, ...] = ()) -> Make:
    return lambda: tool_format("hermes", added).create_parser(context("f", "get_weather", PATCH))


def both(added: tuple[str, ...] = ()) -> Make:
    def make() -> Parser:
        reasoning = registry.find_reasoning_format("think", added)
        tools = registry.find_tool_format("hermes", added)
        return registry.create_parser(reasoning, tools, context("f", "get_weather", PATCH))

    return make


PARSERS = {
    "think": thinking(),
    "think, opened": thinking("assistant\n<think>\n"),
    "think, barely opened": thinking("assistant\n<think>"),
    "think, closed": thinking("assistant\n<think>\n\n</think>\n\n"),
    "think, unopened": thinking(unopened=True),
    "hermes": calling(),
    "both": both(),
}
SCRAPS = [
    "<",
    "</",
    "<th",
    "ink>",
    "x",
    "é",
    "{",
    "}",
    '"',
    "\\",
    "null",
    "[",
    "]",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
]
JSON = ['{"name": "f"', '"arguments": ', '{"a": [1, "}"]}', '"input": "', ": ", ", "]
BITS = [*SPECIAL, *SCRAPS, *JSON, " ", "\n", "\n\n"]
CALLS = [
    '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>',
    '<tool_call>\n{"arguments": {"a": {}}, "name": "get_weather"}\n</tool_call>',
    '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n\\"x\\" '
    '\\u00e9"}}\n</tool_call>',
    '<tool_call>\n{"name": "unknown", "arguments": {"a": "<tool_call>"}}\n</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": [1}}</tool_call>',
]
outputs = st.lists(
    st.sampled_from(BITS) | st.sampled_from(CALLS) | st.text(max_size=5), max_size=8
).map("".join)
every_parser = pytest.mark.parametrize("make", PARSERS.values(), ids=list(PARSERS))


@every_parser
@given(outputs, st.data())
def test_parser_result_is_independent_of_chunking(make: Make, output: str, data: st.DataObject):
    full = shape(fold(parse(make(), deltas([output]))))
    assert shape(fold(parse(make(), deltas(cut(data.draw, output))))) == full
    assert shape(fold(parse(make(), deltas(output)))) == full


WORDY = "<think>\nLet me see.\n</think>\n\nI will.\n" + "\n".join(CALLS) + "\nDone <b>x</b>.\n"


@every_parser
def test_parser_any_split_point_gives_same_result(make: Make):
    full = shape(fold(parse(make(), deltas([WORDY]))))
    for at in range(1, len(WORDY)):
        assert shape(fold(parse(make(), deltas([WORDY[:at], WORDY[at:]])))) == full, WORDY[:at]


@every_parser
@given(outputs, st.data())
def test_parser_preserves_all_tokens_in_order(make: Make, output: str, data: st.DataObject):
    pieces = cut(data.draw, output)
    choice = fold(parse(make(), deltas(pieces)))
    assert [one.text for one in choice.tokens] == [*pieces, END.text]


tokenised = st.lists(
    st.sampled_from([*SPECIAL, "<", "think", "tool_call", ">", "</", "\n", "x", " ", "{", "}"]).map(
        token
    )
)


@pytest.mark.parametrize(
    "make",
    [thinking(added=SPECIAL), thinking("<think>", added=SPECIAL), calling(SPECIAL), both(SPECIAL)],
)
@given(tokenised, st.data())
def test_parser_result_is_independent_of_token_grouping(
    make: Make, tokens: list[Token], data: st.DataObject
):
    """Markers are distinguished from similar text, however tokens share deltas."""
    each = [TextDelta(0, one.text, (one,)) for one in tokens]
    regrouped = fold(parse(make(), regroup(data.draw, tokens)))
    assert shape(regrouped) == shape(fold(parse(make(), each)))
    assert plain(regrouped) == [*tokens, END]


@every_parser
@given(st.text("abc \n<"), st.data())
def test_parser_without_markers_returns_text_unchanged(
    make: Make, output: str, data: st.DataObject
):
    choice = fold(parse(make(), deltas(cut(data.draw, output))))
    assert choice.join_text() + choice.join_reasoning() in (output, output.removeprefix("\n"))


def operations(work: Callable[[], object]) -> int:
    """Count the calls of Python and C functions, which are measured instead of time."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


UNENDING = {
    "blanks": ("", "\n"),
    "blanks in a thought": ("<think>", "\n"),
    "half marks": ("x", "\n<tool_cal"),
    "marks": ("x", "<tool_call>"),
    "calls": ("", CALLS[0] + "\n"),
    "calls without an end": ("", CALLS[0].removesuffix("</tool_call>")),
    "blanks behind a call": (CALLS[0], " "),
    "held arguments": ('<tool_call>{"arguments": {"a": "', "<tool_call>{"),
    "a long key": ('<tool_call>{"', "x"),
    "a long name": ('<tool_call>{"name": "', "\\n"),
    "deep arguments": ('<tool_call>{"name": "f", "arguments": ', '[{"a":'),
    "quoted arguments": ('<tool_call>{"name": "f", "arguments": "', "\\ud83d"),
    "an endless scalar": ('<tool_call>{"name": "f", "arguments": 1', "1"),
    "malformed arguments": ('<tool_call>{"name": "f", "arguments": {]', "\n</tool_cal"),
    "a custom input": ('<tool_call>{"name": "patch", "arguments": {"input": "', "\\u00e9"),
    "a custom tool's other keys": ('<tool_call>{"name": "patch", "arguments": {"a": "', "\\"),
}


@pytest.mark.parametrize("full", [True, False], ids=["in one delta", "a piece a delta"])
@pytest.mark.parametrize(("head", "unit"), UNENDING.values(), ids=list(UNENDING))
def test_parser_time_is_linear(head: str, unit: str, full: bool):
    def work(n: int) -> int:
        pieces = [head + unit * n] if full else [head, *[unit] * n]
        events = deltas(piece for piece in pieces if piece)
        parser = both()()
        return operations(lambda: [parser.feed(event) for event in events])

    assert work(1000) < 11 * work(100)
