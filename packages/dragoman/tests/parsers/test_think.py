"""Reasoning between delimiters."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Token,
)
from dragoman.core.syntax import ReasoningSyntax
from dragoman.parsers.think import ThinkFormat

from .parsing import END, SPECIAL, answer, context, deltas, fold, parse, shape, token

OPEN = "<|im_start|>assistant\n<think>\n"
CLOSED = "<|im_start|>assistant\n<think>\n\n</think>\n\n"


def think(tail: str = "<|im_start|>assistant\n", *, unopened: bool = False):
    return ThinkFormat(starts_implicitly=unopened).create_parser(context(tail=tail))


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nYes", "hm", "Yes"),
        ("<think>hm</think>Yes", "hm", "Yes"),
        ("<think>hm</think>\nYes", "hm", "Yes"),
        ("<think>hm</think>\n\n\n Yes", "hm", "\n Yes"),
        ("<think>\n\nhm\n\n</think> Yes", "\nhm\n", " Yes"),
        (" \n<think>hm</think>Yes", "hm", "Yes"),
        ("<think>\n\n</think>\n\nYes", "", "Yes"),
        ("<think>\n</think>\n\nYes", "", "Yes"),
        ("<think></think>", "", ""),
        ("Yes", "", "Yes"),
        (" \nYes", "", " \nYes"),
        (" \n", "", " \n"),
        ("Say <think>hm</think>", "", "Say <think>hm</think>"),
        ("<think>hm</think>Then <think>no</think>", "hm", "Then <think>no</think>"),
        ("</think>Yes", "", "</think>Yes"),
        ("<thinking>", "", "<thinking>"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("<think>a </thin k></think>c", "a </thin k>", "c"),
    ],
)
def test_delimiters_separate_reasoning_from_text(text: str, reasoning: str, content: str):
    parts = [("reasoning", reasoning)] * bool(reasoning) + [("text", content)] * bool(content)
    assert answer(think(), text) == parts


@pytest.mark.parametrize(
    ("tail", "text", "reasoning", "content"),
    [
        (OPEN, "hm\n</think>\n\nYes", "hm", "Yes"),
        (OPEN, "\nhm</think>Yes", "\nhm", "Yes"),
        (OPEN.rstrip("\n"), "\nhm</think>Yes", "hm", "Yes"),
        (OPEN, "<think>\nhm</think>Yes", "hm", "Yes"),
        (OPEN, "</think>Yes", "", "Yes"),
        (OPEN + "So far", ", so good</think>Yes", ", so good", "Yes"),
        (CLOSED, "Yes", "", "Yes"),
        (CLOSED, "<think>Yes", "", "<think>Yes"),
    ],
)
def test_prompt_tail_determines_open_reasoning(tail: str, text: str, reasoning: str, content: str):
    parts = [("reasoning", reasoning)] * bool(reasoning) + [("text", content)]
    assert answer(think(tail), text) == parts


def test_unopened_reasoning_is_parsed_only_if_configured():
    text = "hm</think>Yes"
    assert answer(think(), text) == [("text", text)]
    assert answer(think(unopened=True), text) == [("reasoning", "hm"), ("text", "Yes")]
    assert answer(think(unopened=True), "<think>\n" + text) == [
        ("reasoning", "hm"),
        ("text", "Yes"),
    ]


def test_truncated_reasoning_keeps_all_characters():
    assert answer(think(), "<think>hm\n</thi", FinishReason.LENGTH) == [("reasoning", "hm\n</thi")]
    assert answer(think(), "<thi", FinishReason.LENGTH) == [("text", "<thi")]
    assert answer(think(OPEN), "\n<thi", FinishReason.LENGTH) == [("reasoning", "\n<thi")]


def feed_pieces(tail: str, pieces: list[str]) -> list[list[Event]]:
    parser = think(tail)
    return [parser.feed(delta) for delta in deltas(pieces)]


def test_reasoning_is_streamed_immediately():
    events = feed_pieces(OPEN, ["So", " <", "b>"])
    assert events == [
        [ReasoningDelta(0, "So", (token("So"),))],
        [ReasoningDelta(0, " ", (token(" <"),))],
        [ReasoningDelta(0, "<b>", (token("b>"),))],
    ]


def test_text_after_reasoning_passes_through_unchanged():
    parser = think(CLOSED)
    for delta in deltas(["Yes", " <think>", "\n"]):
        (passed,) = parser.feed(delta)
        assert passed is delta
        assert parser.is_done


def test_parser_with_held_token_is_not_done():
    parser = think(CLOSED)
    assert parser.feed(TextDelta(0, "", (token(""),))) == []
    parser.feed(*deltas(["Yes"]))
    assert not parser.is_done


def markup(text: str) -> Token:
    return replace(token(text), markup=True)


def texts_of(event: Event) -> list[str]:
    assert isinstance(event, TextDelta | ReasoningDelta)
    return [one.text for one in event.tokens]


def test_marker_tokens_are_attached_to_next_event():
    events = parse(think(), deltas(["<think>", "\n", "hm", "</think>", "\n\n", "Yes"]))
    assert [(type(event), texts_of(event)) for event in events[1:3]] == [
        (ReasoningDelta, ["<think>", "\n", "hm"]),
        (TextDelta, ["</think>", "\n\n", "Yes"]),
    ]
    thought = parse(think(), deltas(["<think>", "hm", "</think>"]))
    assert isinstance(thought[-2], ChoiceFinished)
    assert thought[-2].tokens == (markup("</think>"), END)


def test_token_is_attached_to_part_with_its_first_text():
    """ "What is 17 + 26?" of the tiny model: the reasoning ended in a token of which one
    character was dropped.
    """
    events = parse(think(OPEN), deltas(["hm", ".\n", "</think>", "\n\n", "1"]))
    parts = [
        (type(event), event.tokens)
        for event in events
        if isinstance(event, TextDelta | ReasoningDelta)
    ]
    assert parts == [
        (ReasoningDelta, (token("hm"),)),
        (ReasoningDelta, (token(".\n"),)),
        (TextDelta, (markup("</think>"), markup("\n\n"), token("1"))),
    ]
    all_at_once = TextDelta(
        0, "hm.\n</think>\n\n1", tuple(map(token, ["hm", ".\n", "</think>", "\n\n", "1"]))
    )
    choice = fold(parse(think(OPEN), [all_at_once]))
    assert [part.tokens for part in choice.parts] == [
        (token("hm"), token(".\n")),
        (markup("</think>"), markup("\n\n"), token("1")),
    ]


@pytest.mark.parametrize("pieces", [["<", "think", ">", "x"], ["<th", "ink>x"]])
def test_spelled_marker_with_single_token_vocabulary_is_text(pieces: list[str]):
    marks = ThinkFormat(added_tokens=SPECIAL)
    assert shape(fold(parse(marks.create_parser(context()), deltas(pieces)))) == [
        ("text", "<think>x")
    ]
    assert shape(fold(parse(ThinkFormat().create_parser(context()), deltas(pieces)))) == [
        ("reasoning", "x")
    ]
    assert answer(marks.create_parser(context()), "<think>x") == [("reasoning", "x")], (
        "without tokens the text counts"
    )


def test_spelled_end_marker_does_not_end_reasoning():
    pieces = ["<think>", "say ", "</", "think", ">", " twice", "</think>", "Yes"]
    choice = fold(parse(ThinkFormat(added_tokens=SPECIAL).create_parser(context()), deltas(pieces)))
    assert shape(choice) == [("reasoning", "say </think> twice"), ("text", "Yes")]


def test_other_events_pass_through_in_order():
    parser = think()
    parser.feed(TextDelta(0, "<thi", (token("<thi"),)))
    native = ReasoningDelta(0, "native", (token("native"),))
    assert parser.feed(native) == [TextDelta(0, "<thi", (token("<thi"),)), native]


def test_custom_delimiters_are_parsed():
    format = ThinkFormat("[THINK]", "[/THINK]", "")
    assert format.syntax == ReasoningSyntax("[THINK]", "[/THINK]", "")
    assert answer(format.create_parser(context()), "[THINK]hm[/THINK]\nYes") == [
        ("reasoning", "hm"),
        ("text", "\nYes"),
    ]
