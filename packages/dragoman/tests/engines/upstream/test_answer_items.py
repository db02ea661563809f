"""Whole items add what their pieces lack, whatever has come before, and contradictions
are errors.
"""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import EngineError
from dragoman.core.events import TextDelta, ToolCallDelta
from dragoman.engines.upstream.answer_items import ItemSequencer, TextItem
from dragoman.engines.upstream.event_decoding import clean_text

# Halves of surrogate pairs included.
TEXTS = st.text(st.sampled_from("a é😀\ud83d\ude00"), max_size=6)


@given(TEXTS, st.lists(st.integers(0, 6), max_size=3), st.integers(0, 6))
def test_text_in_any_pieces_is_completed(whole: str, cuts: list[int], received: int) -> None:
    sequencer = ItemSequencer(0, None)
    item = TextItem(TextDelta)
    # A lone half before the end of the pieces may be the first of a pair.
    places = sorted({0, received, *(cut for cut in cuts if cut < received)})
    for start, end in pairwise(places):
        sequencer.add(item, whole[start:end])
    is_split = whole[:received][-1:] == "\ud83d" and whole[received:].startswith("\ude00")
    if not is_split:
        sequencer.complete(item, whole)
        sequencer.close()
        texts = [event.text for event in sequencer.take() if isinstance(event, TextDelta)]
        assert "".join(texts) == clean_text(whole)


@given(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3),
    st.integers(0, 30),
    st.booleans(),
)
def test_arguments_in_any_pieces_are_completed(
    arguments: dict[str, object], received: int, is_object: bool
) -> None:
    text = json.dumps(arguments, ensure_ascii=False)
    sequencer = ItemSequencer(0, None)
    call = sequencer.start_call("c", "add")
    sequencer.add_arguments(call, text[:received])
    sequencer.complete_call(call, arguments if is_object else text)
    sequencer.end_call(call)
    deltas = [event for event in sequencer.take() if isinstance(event, ToolCallDelta)]
    assert json.loads("".join(delta.arguments for delta in deltas)) == arguments


@pytest.mark.parametrize("whole", ["b", "ba", "x"])
def test_contradicting_whole_text_raises(whole: str) -> None:
    sequencer = ItemSequencer(0, None)
    item = TextItem(TextDelta)
    sequencer.add(item, "ab")
    with pytest.raises(EngineError, match="contradicts"):
        sequencer.complete(item, whole)


def test_unended_call_buffers_later_text() -> None:
    sequencer = ItemSequencer(0, None)
    call = sequencer.start_call("c", "add")
    sequencer.add_arguments(call, '{"a"')
    sequencer.add(TextItem(TextDelta), "later")
    assert not any(isinstance(event, TextDelta) for event in sequencer.take())
    sequencer.add_arguments(call, ":1}")
    assert isinstance(sequencer.take()[-1], TextDelta)
