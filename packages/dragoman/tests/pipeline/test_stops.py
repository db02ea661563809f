"""Stop strings end a choice's text with any chunking, never its reasoning or a call,
and no token is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    get_answer_tokens,
)
from dragoman.pipeline.detokenizer import TextAssembler, Vocabulary
from dragoman.pipeline.stop_strings import StopStage, StopStrings

from .byte_tokenizer import BYTES, ByteTokenizer

END = ChoiceFinished(0, FinishReason.LENGTH)
stops_of = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4)


def deltas(pieces: Iterable[str]) -> list[Event]:
    return [TextDelta(0, piece, (Token(i, piece),)) for i, piece in enumerate(pieces)]


def feed_all(stage: StopStage, events: Iterable[Event]) -> list[Event]:
    return [out for event in (*events, END) for out in stage.feed(event)]


def text(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def stage(*stops: str, include: bool = False, min_tokens: int = 0) -> StopStage:
    return StopStage(0, stops, includes_stop=include, min_tokens=min_tokens)


@pytest.mark.parametrize(
    "pieces", [["abSTOPcd"], list("abSTOPcd"), ["abS", "TO", "Pcd"], ["ab", "STOP", "cd"]]
)
@pytest.mark.parametrize(("include", "expected"), [(False, "ab"), (True, "abSTOP")])
def test_stop_string_split_across_deltas_is_found(
    pieces: list[str], include: bool, expected: str
) -> None:
    out = feed_all(stage("STOP", include=include), deltas(pieces))
    assert text(out) == expected
    last = out[-1]
    assert isinstance(last, ChoiceFinished)
    assert (last.reason, last.stop) == (FinishReason.STOP, "STOP")


def test_partial_stop_string_at_end_is_text() -> None:
    out = feed_all(stage("STOP"), deltas(["abST"]))
    assert text(out) == "abST"
    assert isinstance(out[-1], ChoiceFinished)
    assert out[-1].stop is None


def test_stop_string_does_not_cut_reasoning_or_calls() -> None:
    events: list[Event] = [
        ReasoningDelta(0, "STOP"),
        ToolCallStart(0, "c", "f"),
        ToolCallDelta(0, '"STOP"'),
    ]
    assert feed_all(stage("STOP"), events) == [*events, END]


def test_partial_stop_string_before_call_is_emitted_first() -> None:
    events: list[Event] = [*deltas(["abST"]), ToolCallStart(0, "c", "f")]
    out = feed_all(stage("STOP"), events)
    assert [type(event) for event in out] == [TextDelta, TextDelta, ToolCallStart, ChoiceFinished]
    assert text(out) == "abST"


def test_stop_string_does_not_span_tool_call() -> None:
    events: list[Event] = [*deltas(["ST"]), ToolCallStart(0, "c", "f"), *deltas(["OP"])]
    assert text(feed_all(stage("STOP"), events)) == "STOP"


def test_stop_string_within_min_tokens_is_ignored() -> None:
    assert text(feed_all(stage("b", min_tokens=2), deltas("abcbd"))) == "abc"


cut_texts = st.lists(st.text("abST", min_size=1, max_size=4), max_size=12)


@given(cut_texts, st.lists(st.sampled_from(["ab", "ST", "S", "bS", "aST"]), min_size=1, max_size=3))
def test_stop_stage_is_independent_of_chunking_and_keeps_tokens(
    pieces: list[str], stops: list[str]
) -> None:
    out = feed_all(stage(*stops), deltas(pieces))
    full = feed_all(stage(*stops), deltas("".join(pieces)))
    assert text(out) == text(full)
    assert [token.id for event in out for token in get_answer_tokens(event)] == list(
        range(len(pieces))
    )
    assert not any(stop in text(out) for stop in stops)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """A simple reference implementation of the rule."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.text("ab<c"), stops_of, st.booleans(), st.data())
def test_first_complete_stop_string_ends_text(
    text: str, stops: list[str], include: bool, data: st.DataObject
):
    before, matched = first_stop(text, stops)
    expected = before + matched if include and matched else before
    stopper = StopStrings(stops, includes_stop=include)
    out = ""
    at = 0
    while at < len(text):
        size = data.draw(st.integers(1, len(text) - at))
        out += stopper.feed(text[at : at + size])
        at += size
    out += stopper.flush()
    assert (out, stopper.matched) == (expected, matched)


@given(st.text("ab<c"), stops_of)
def test_stop_strings_hold_text_only_while_needed(text: str, stops: list[str]):
    stopper = StopStrings(stops)
    out = ""
    read = ""
    for char in text:
        out = out + stopper.feed(char)
        read = read + char
        if stopper.matched is not None:
            break
        beginnings = [stop[:n] for stop in stops for n in range(1, len(stop))]
        longest = max((len(begin) for begin in beginnings if read.endswith(begin)), default=0)
        assert out == read[: len(read) - longest]


@pytest.mark.parametrize(
    ("stops", "text", "expected", "matched"),
    [
        (["bc", "abcd"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabcd", "x", "abc"),
        (["aab"], "aaab", "a", "aab"),
        (["日本"], "a日本", "a", "日本"),
        (["zz"], "az", "az", None),
    ],
)
def test_overlapping_stop_strings_match_expected_one(
    stops: list[str], text: str, expected: str, matched: str | None
):
    stopper = StopStrings(stops)
    assert ("".join(map(stopper.feed, text)) + stopper.flush(), stopper.matched) == (
        expected,
        matched,
    )


def test_ignored_stop_string_is_not_held():
    stopper = StopStrings(["ab", "bc"])
    assert (stopper.feed("ab", ignore=True), stopper.feed("x")) == ("a", "bx")
    assert StopStrings(["ab"]).feed("ab", ignore=True) == "ab"


@given(
    st.lists(st.integers(0, ByteTokenizer.vocab_size - 1) | st.sampled_from(range(0x80, 0x100))),
    st.lists(
        st.sampled_from(["<", "<end", "ld", "\n", "本", "Hello w", "\ufffd"]),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
)
def test_detokenized_text_is_stopped_without_losing_tokens(
    ids: list[int], stops: list[str], include: bool
):
    """An incomplete character at the end, which becomes text only there, can still
    complete a stop.
    """
    assembler = TextAssembler(Vocabulary(BYTES), 0)
    stopper = stage(*stops, include=include)
    fed = [event for event in map(assembler.feed, ids) if event is not None]
    out = [
        out_event
        for event in (*fed, *assembler.finish(FinishReason.LENGTH))
        for out_event in stopper.feed(event)
    ]
    before, matched = first_stop(BYTES.decode(ids, skip_special_tokens=True), stops)
    assert text(out) == (before + matched if include and matched else before)
    assert [token.id for event in out for token in get_answer_tokens(event)] == ids
    assert isinstance(out[-1], ChoiceFinished)
    assert out[-1].stop == matched


def test_stop_string_in_text_without_tokens_is_found() -> None:
    """An upstream may report no tokens. `min_tokens` is 0, so every stop string
    applies.
    """
    stage = StopStage(0, ("three",), includes_stop=False, min_tokens=0)
    *texts, end = feed_all(
        stage, [TextDelta(0, "One th"), TextDelta(0, "ree"), TextDelta(0, " four")]
    )
    assert text(texts) == "One "
    assert end == ChoiceFinished(0, FinishReason.STOP, "three")
