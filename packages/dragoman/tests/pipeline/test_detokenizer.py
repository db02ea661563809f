"""The detokenizer and its events: characters are not split, no token is lost, and any
chunking gives the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.events import ChoiceFinished, Event, FinishReason, TextDelta, Token
from dragoman.core.token_engine import TokenLogprob
from dragoman.pipeline.detokenizer import Detokenizer, TextAssembler, Vocabulary

from .byte_tokenizer import BYTES, END, THINK, WORDS, ByteTokenizer

ids = st.lists(st.integers(0, ByteTokenizer.vocab_size - 1) | st.sampled_from(range(0x80, 0x100)))


def vocabulary() -> Vocabulary:
    return Vocabulary(BYTES)


def run(assembler: TextAssembler, tokens: Sequence[int]) -> list[Event]:
    fed = [assembler.feed(id) for id in tokens]
    return [*(event for event in fed if event is not None), *assembler.finish(FinishReason.LENGTH)]


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def tokens_of(events: Sequence[Event]) -> list[Token]:
    return [
        token
        for event in events
        if isinstance(event, TextDelta | ChoiceFinished)
        for token in event.tokens
    ]


@given(ids, st.booleans(), st.sampled_from([frozenset[int](), frozenset({THINK})]))
def test_detokenizer_text_equals_decoded_bytes(tokens: list[int], skip: bool, keep: frozenset[int]):
    detokenizer = Detokenizer(vocabulary(), visible_ids=keep, skips_special=skip)
    text = "".join(map(detokenizer.feed, tokens)) + detokenizer.flush()
    visible = [id for id in tokens if not (skip and id >= END and id not in keep)]
    assert text == BYTES.decode(visible)


@given(st.text())
def test_detokenizer_never_emits_partial_character(text: str):
    detokenizer = Detokenizer(vocabulary())
    released = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(released) == text
    assert detokenizer.flush() == ""


def test_detokenizer_emits_invalid_byte_immediately():
    detokenizer = Detokenizer(vocabulary())
    assert [detokenizer.feed(id) for id in (0xE2, 0x82, ord("x"), 0xFF)] == ["", "", "�x", "�"]
    assert (detokenizer.feed(0xF0), detokenizer.flush(), detokenizer.flush()) == ("", "�", "")


def test_special_tokens_are_hidden_but_spelled_ones_are_text():
    spelled = [256 + WORDS.index(part) for part in ("<", "end", ">")]
    assert text_of(run(TextAssembler(vocabulary(), 0), [*spelled, END])) == "<end>"
    assert (
        text_of(run(TextAssembler(vocabulary(), 0, visible_ids=frozenset({THINK})), [THINK, END]))
        == "<think>"
    )
    assert (
        text_of(run(TextAssembler(vocabulary(), 0, skips_special=False), [THINK, END]))
        == "<think><end>"
    )


def test_build_token_returns_text_raw_bytes_and_logprobs():
    seen = vocabulary()
    assert seen.build_token(256) == Token(256, "Hello")
    assert seen.build_token(0xE2) == Token(0xE2, "�", raw=b"\xe2")
    assert seen.build_token(END) == Token(END, "<end>", special=True)
    scored = seen.build_token(256, TokenLogprob(-0.5, 2, ((0xE2, -0.1), (256, -0.5))))
    assert (scored.logprob, scored.rank) == (-0.5, 2)
    assert [(other.id, other.text, other.raw) for other in scored.top] == [
        (0xE2, "�", b"\xe2"),
        (256, "Hello", None),
    ]


@given(ids)
def test_text_assembler_preserves_all_tokens_in_order(tokens: list[int]):
    events = run(TextAssembler(vocabulary(), 3), tokens)
    assert [token.id for token in tokens_of(events)] == tokens
    assert all(event.text for event in events if isinstance(event, TextDelta))
    assert [type(event) for event in events].count(ChoiceFinished) == 1
    assert text_of(events) == BYTES.decode(tokens, skip_special_tokens=True)


def test_text_assembler_attaches_tokens_to_completed_character():
    assembler = TextAssembler(vocabulary(), 0)
    assert [assembler.feed(0xC3), assembler.feed(0xA9)] == [
        None,
        TextDelta(0, "é", (Token(0xC3, "\ufffd", raw=b"\xc3"), Token(0xA9, "\ufffd", raw=b"\xa9"))),
    ]


def test_text_assembler_reports_stop_token():
    assembler = TextAssembler(vocabulary(), 0)
    assembler.feed(END)
    assert assembler.finish(FinishReason.STOP, END) == [
        ChoiceFinished(0, FinishReason.STOP, END, (Token(END, "<end>", special=True),))
    ]
