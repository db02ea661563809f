"""The tokens that `logprobs` lists join to the text, however tokens and text were
split.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.events import Token
from dragoman.dialects.token_alignment import ContentTokens, content_tokens

END = Token(2, "<|im_end|>", special=True)


def tokens(*texts: str) -> list[Token]:
    return [Token(index, text) for index, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("text", "given", "listed"),
    [
        ("hello", [*tokens("hel", "lo"), END], ["hel", "lo"]),
        (
            "1",
            [Token(1, "</think>", markup=True), Token(1, "\n\n", markup=True), *tokens("1")],
            ["1"],
        ),
        # A stop string truncated the last token, or removed it.
        ("so", tokens("so", "me "), ["so"]),
        ("a so", tokens("a", " some", " "), ["a", " so"]),
        # The template's newlines were dropped.
        ("Yes", tokens("\n\nYes"), ["Yes"]),
        # Bytes that form a character together, and invalid bytes.
        (
            "€",
            [Token(1, "\ufffd", raw=b"\xe2\x82"), Token(2, "\ufffd", raw=b"\xac")],
            ["\ufffd", "\ufffd"],
        ),
        ("\ufffd!", [Token(1, "\ufffd", raw=b"\xe2\x82"), Token(2, "!")], ["\ufffd", "!"]),
        # A control token that the client wants to see is text.
        ("a<|im_end|>", [*tokens("a"), END], ["a", "<|im_end|>"]),
    ],
)
def test_content_tokens_join_to_text(text: str, given: list[Token], listed: list[str]):
    assert [token.text for token in content_tokens(text, given)] == listed


PIECES = st.lists(st.text("ab €\n", min_size=1, max_size=4), max_size=6)


@given(PIECES, st.data())
def test_content_tokens_are_independent_of_chunk_boundaries(pieces: list[str], data: st.DataObject):
    text = "".join(pieces)
    text = text[: data.draw(st.integers(0, len(text)))]  # a stop string cut the rest
    given = [
        one
        for piece in tokens(*pieces)
        for one in data.draw(st.sampled_from([[piece], [END, piece]]))
    ]
    full = content_tokens(text, given)
    assert "".join(token.text for token in full) == text
    cut = ContentTokens()
    found = list[Token]()
    while text or given:
        size = data.draw(st.integers(0, len(text)))
        count = data.draw(st.integers(0, len(given)))
        if not size and not count:
            size = len(text)
            count = len(given)
        found += cut.feed(text[:size], given[:count])
        text = text[size:]
        given = given[count:]
    assert found + cut.close() == full
