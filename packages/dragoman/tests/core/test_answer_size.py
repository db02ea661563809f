"""The size of an answer: reported counts are believed if the text can have them."""

from __future__ import annotations

import pytest

from dragoman.core.answer_size import AnswerSize
from dragoman.core.events import Event, Finished, TextDelta, Token, Usage


def measure(*events: Event) -> int:
    size = AnswerSize()
    for event in events:
        size.add(event)
    return size.count


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("Administration", 1),
        (" internationalization", 1),
        ("-" * 160, 3),
        ("=" * 64 + "\n" + " " * 128, 3),
        ("The quick brown fox jumps over the lazy dog.", 10),
    ],
)
def test_exact_reported_count_is_charged(text: str, reported: int) -> None:
    end = Finished(Usage(5, reported))
    assert measure(TextDelta(0, text), end) == reported
    assert measure(*(TextDelta(0, character) for character in text), end) == reported


@pytest.mark.parametrize(
    ("text", "least"),
    [("word " * 200, 122), ("日本語" * 100, 35), ("-" * 12_800, 100), ("ab" * 5_000, 1247)],
)
def test_reported_count_too_low_charges_least_of_text(text: str, least: int) -> None:
    assert measure(TextDelta(0, text), Finished(Usage(5, 1))) == least


def test_tokens_of_runs_are_whole_count() -> None:
    dashes = TextDelta(0, "-" * 160, (Token(1, "-" * 128), Token(2, "-" * 32)))
    assert measure(dashes) == 2


def test_tokens_of_part_are_completed_by_estimate() -> None:
    assert measure(TextDelta(0, "a", (Token(1, "a"),)), TextDelta(0, "some words " * 20)) == 56
