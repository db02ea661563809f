"""The detokeniser, stop strings, and both together: no character halved, no token lost, no cut that matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.engine import Score
from dragoman.core.events import ChoiceFinished, Event, FinishReason, TextDelta, Token
from dragoman.pipeline.text import Detokenizer, StopStrings, TextAssembler, Vocabulary

WORDS = ["Hello", " world", "<", "end", ">", "é", "日本", "\n"]
END, THINK = 256 + len(WORDS), 257 + len(WORDS)


class Bytes:
    """A tokenizer of 256 bytes, a few words and two special tokens."""

    vocab_size = 258 + len(WORDS)
    longest_token = 7
    special_tokens: Mapping[str, int] = {"<end>": END, "<think>": THINK}

    def __init__(self) -> None:
        self._bytes = [*(bytes([n]) for n in range(256)), *(word.encode() for word in WORDS), b"<end>", b"<think>"]

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, id: int) -> bytes:
        return self._bytes[id]

    def is_special(self, id: int) -> bool:
        return id >= END

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = (id for id in ids if not (skip_special_tokens and self.is_special(id)))
        return b"".join(self._bytes[id] for id in kept).decode("utf-8", "replace")


BYTES = Bytes()
ids = st.lists(st.integers(0, Bytes.vocab_size - 1) | st.sampled_from(range(0x80, 0x100)))
stops_of = st.lists(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4)


def vocabulary() -> Vocabulary:
    return Vocabulary(BYTES)


def run(assembler: TextAssembler, tokens: Sequence[int]) -> list[Event]:
    fed = [assembler.feed(id) for id in tokens]
    return [*(event for event in fed if event is not None), *assembler.close(FinishReason.LENGTH)]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def tokens_of(events: Sequence[Event]) -> list[Token]:
    return [token for event in events if isinstance(event, TextDelta | ChoiceFinished) for token in event.tokens]


@given(ids, st.booleans(), st.sampled_from([frozenset[int](), frozenset({THINK})]))
def test_the_text_is_the_decoding_of_all_bytes(tokens: list[int], skip: bool, keep: frozenset[int]):
    detokenizer = Detokenizer(vocabulary(), keep=keep, skip_special=skip)
    text = "".join(map(detokenizer.feed, tokens)) + detokenizer.close()
    visible = [id for id in tokens if not (skip and id >= END and id not in keep)]
    assert text == BYTES.decode(visible)


@given(st.text())
def test_no_half_character_is_ever_released(text: str):
    detokenizer = Detokenizer(vocabulary())
    released = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(released) == text
    assert detokenizer.close() == ""


def test_a_byte_that_can_never_become_a_character_is_told_at_once():
    detokenizer = Detokenizer(vocabulary())
    assert [detokenizer.feed(id) for id in (0xE2, 0x82, ord("x"), 0xFF)] == ["", "", "�x", "�"]
    assert (detokenizer.feed(0xF0), detokenizer.close(), detokenizer.close()) == ("", "�", "")


def test_special_tokens_are_silent_and_text_that_looks_like_one_is_not():
    spelled = [256 + WORDS.index(part) for part in ("<", "end", ">")]
    assert text_of(run(TextAssembler(vocabulary(), 0), [*spelled, END])) == "<end>"
    assert text_of(run(TextAssembler(vocabulary(), 0, keep=frozenset({THINK})), [THINK, END])) == "<think>"
    assert text_of(run(TextAssembler(vocabulary(), 0, skip_special=False), [THINK, END])) == "<think><end>"


def test_a_token_says_what_it_is():
    seen = vocabulary()
    assert seen.token(256) == Token(256, "Hello")
    assert seen.token(0xE2) == Token(0xE2, "�", raw=b"\xe2")
    assert seen.token(END) == Token(END, "<end>", special=True)
    scored = seen.token(256, Score(-0.5, 2, ((0xE2, -0.1), (256, -0.5))))
    assert (scored.logprob, scored.rank) == (-0.5, 2)
    assert [(other.id, other.text, other.raw) for other in scored.top] == [(0xE2, "�", b"\xe2"), (256, "Hello", None)]


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The rule again, as simply as can be."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.text("ab<c"), stops_of, st.booleans(), st.data())
def test_the_first_complete_stop_ends_the_text_however_it_is_cut(
    text: str, stops: list[str], include: bool, data: st.DataObject
):
    before, matched = first_stop(text, stops)
    expected = before + matched if include and matched else before
    stopper, out, at = StopStrings(stops, include=include), "", 0
    while at < len(text):
        size = data.draw(st.integers(1, len(text) - at))
        out += stopper.feed(text[at : at + size])
        at += size
    out += stopper.close()
    assert (out, stopper.matched) == (expected, matched)


@given(st.text("ab<c"), stops_of)
def test_text_is_held_no_longer_than_needed(text: str, stops: list[str]):
    stopper, out, read = StopStrings(stops), "", ""
    for char in text:
        out, read = out + stopper.feed(char), read + char
        if stopper.matched is not None:
            break
        beginnings = [stop[:n] for stop in stops for n in range(1, len(stop))]
        longest = max((len(begin) for begin in beginnings if read.endswith(begin)), default=0)
        assert out == read[: len(read) - longest]


@pytest.mark.parametrize(
    ("stops", "text", "kept", "matched"),
    [
        (["bc", "abcd"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabcd", "x", "abc"),
        (["aab"], "aaab", "a", "aab"),
        (["日本"], "a日本", "a", "日本"),
        (["zz"], "az", "az", None),
    ],
)
def test_which_stop_wins(stops: list[str], text: str, kept: str, matched: str | None):
    stopper = StopStrings(stops)
    assert ("".join(map(stopper.feed, text)) + stopper.close(), stopper.matched) == (kept, matched)


@given(ids, st.lists(st.sampled_from(["<", "<end", "ld", "\n", "本", "Hello w", "�"]), max_size=3), st.booleans())
def test_no_token_is_lost_and_their_order_stays(tokens: list[int], stops: list[str], include: bool):
    assembler = TextAssembler(vocabulary(), 3, stops=stops, include_stop=include)
    events = run(assembler, tokens)
    assert [token.id for token in tokens_of(events)] == tokens[: assembler.count]
    assert all(event.text for event in events if isinstance(event, TextDelta))
    assert [type(event) for event in events].count(ChoiceFinished) == 1
    whole = BYTES.decode(tokens[: assembler.count], skip_special_tokens=True)
    before, matched = first_stop(whole, stops)
    assert text_of(events) == (before + matched if include and matched else before)


@given(ids)
def test_stops_that_never_match_change_nothing(tokens: list[int]):
    plain, stopped = TextAssembler(vocabulary(), 0), TextAssembler(vocabulary(), 0, stops=["\0\0\1\1"])
    left, right = run(plain, tokens), run(stopped, tokens)
    assert (text_of(left), tokens_of(left)) == (text_of(right), tokens_of(right))


def test_the_tokens_of_a_removed_stop_ride_on_the_end():
    assembler = TextAssembler(vocabulary(), 0, stops=["<end>"])
    events = run(assembler, [256, *(256 + WORDS.index(part) for part in ("<", "end", ">")), 257])
    assert assembler.matched == "<end>"
    hello, end = events
    assert isinstance(hello, TextDelta)
    assert isinstance(end, ChoiceFinished)
    assert (hello.text, end.reason, end.stop) == ("Hello", FinishReason.STOP, "<end>")
    assert "".join(token.text for token in end.tokens) == "<end>"
    assert assembler.feed(256) is None
    assert assembler.count == 4


def test_a_token_rides_where_the_last_of_its_text_is_released():
    assembler = TextAssembler(vocabulary(), 0, stops=["end!"])
    assert [assembler.feed(256 + WORDS.index("end")), assembler.feed(ord("!") + 1)] == [
        None,
        TextDelta(0, 'end"', (Token(256 + WORDS.index("end"), "end"), Token(ord('"'), '"'))),
    ]


def test_a_stop_completed_within_min_tokens_does_not_count():
    assembler = TextAssembler(vocabulary(), 0, stops=["<"], min_tokens=1)
    events = run(assembler, [256 + WORDS.index("<"), 256, 256 + WORDS.index("<")])
    assert (text_of(events), assembler.matched) == ("<Hello", "<")


def test_a_stop_that_does_not_count_is_not_held():
    stopper = StopStrings(["ab", "bc"])
    assert (stopper.feed("ab", ignore=True), stopper.feed("x")) == ("a", "bx")
    assert StopStrings(["ab"]).feed("ab", ignore=True) == "ab"


def test_a_stop_token_is_told_unless_a_stop_string_came_first():
    assembler = TextAssembler(vocabulary(), 0)
    assembler.feed(END)
    assert assembler.close(FinishReason.STOP, END) == [
        ChoiceFinished(0, FinishReason.STOP, END, (Token(END, "<end>", special=True),))
    ]


def test_an_incomplete_character_at_the_end_can_still_complete_a_stop():
    assembler = TextAssembler(vocabulary(), 0, stops=["a�"])
    events = run(assembler, [ord("x"), ord("a"), 0xE2])
    assert (text_of(events), assembler.matched) == ("x", "a�")
