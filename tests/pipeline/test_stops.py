"""Stop strings end a choice's text wherever it is cut, never its reasoning or a call, and lose no token."""

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
    sampled,
)
from dragoman.pipeline.stops import StopStage

END = ChoiceFinished(0, FinishReason.LENGTH)


def deltas(pieces: Iterable[str]) -> list[Event]:
    return [TextDelta(0, piece, (Token(i, piece),)) for i, piece in enumerate(pieces)]


def said(stage: StopStage, events: Iterable[Event]) -> list[Event]:
    return [out for event in (*events, END) for out in stage.feed(event)]


def text(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def stage(*stops: str, include: bool = False, min_tokens: int = 0) -> StopStage:
    return StopStage(0, stops, include=include, min_tokens=min_tokens)


@pytest.mark.parametrize("pieces", [["abSTOPcd"], list("abSTOPcd"), ["abS", "TO", "Pcd"], ["ab", "STOP", "cd"]])
@pytest.mark.parametrize(("include", "shown"), [(False, "ab"), (True, "abSTOP")])
def test_a_stop_is_found_across_borders(pieces: list[str], include: bool, shown: str) -> None:
    out = said(stage("STOP", include=include), deltas(pieces))
    assert text(out) == shown
    last = out[-1]
    assert isinstance(last, ChoiceFinished)
    assert (last.reason, last.stop) == (FinishReason.STOP, "STOP")


def test_a_half_stop_at_the_end_is_text() -> None:
    out = said(stage("STOP"), deltas(["abST"]))
    assert text(out) == "abST"
    assert isinstance(out[-1], ChoiceFinished)
    assert out[-1].stop is None


def test_reasoning_and_calls_are_not_cut() -> None:
    events: list[Event] = [ReasoningDelta(0, "STOP"), ToolCallStart(0, "c", "f"), ToolCallDelta(0, '"STOP"')]
    assert said(stage("STOP"), events) == [*events, END]


def test_a_half_stop_before_a_call_is_text_and_comes_before_it() -> None:
    events: list[Event] = [*deltas(["abST"]), ToolCallStart(0, "c", "f")]
    out = said(stage("STOP"), events)
    assert [type(event) for event in out] == [TextDelta, TextDelta, ToolCallStart, ChoiceFinished]
    assert text(out) == "abST"


def test_a_stop_does_not_join_texts_that_a_call_separates() -> None:
    events: list[Event] = [*deltas(["ST"]), ToolCallStart(0, "c", "f"), *deltas(["OP"])]
    assert text(said(stage("STOP"), events)) == "STOP"


def test_a_stop_within_min_tokens_does_not_count() -> None:
    assert text(said(stage("b", min_tokens=2), deltas("abcbd"))) == "abc"


cut_texts = st.lists(st.text("abST", min_size=1, max_size=4), max_size=12)


@given(cut_texts, st.lists(st.sampled_from(["ab", "ST", "S", "bS", "aST"]), min_size=1, max_size=3))
def test_cutting_does_not_matter_and_no_token_is_lost(pieces: list[str], stops: list[str]) -> None:
    out = said(stage(*stops), deltas(pieces))
    whole = said(stage(*stops), deltas("".join(pieces)))
    assert text(out) == text(whole)
    assert [token.id for event in out for token in sampled(event)] == list(range(len(pieces)))
    assert not any(stop in text(out) for stop in stops)
