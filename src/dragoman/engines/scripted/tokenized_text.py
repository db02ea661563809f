"""Text as tokens, split into pieces. Independent of replies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from msgspec import Struct

from ...core.engine import Tokenizer
from ...core.events import Alternative, Token
from ..script.script import Chunks, Pieces


class TextCut(Struct, frozen=True):
    """A piece of text with the tokens that end in it."""

    text: str
    tokens: tuple[Token, ...]


class TokenizedText(Struct, frozen=True):
    """A text in UTF-8, its tokens, and for each token the byte at which it ends. Ends never decrease."""

    data: bytes
    tokens: tuple[Token, ...]
    ends: tuple[int, ...]

    def count_whole_bytes(self, count: int) -> int:
        """Count the bytes of whole characters after `count` tokens."""
        at = len(self.data) if count >= len(self.ends) else (self.ends[count - 1] if count else 0)
        while 0 < at < len(self.data) and self.data[at] & 0xC0 == 0x80:
            at -= 1
        return at

    def split(self, boundaries: Iterator[int], *, count: int) -> Iterator[TextCut]:
        """Split the text of the first `count` tokens at `boundaries`; each piece has the tokens that end in it."""
        start, used, end = 0, 0, self.count_whole_bytes(count)
        for boundary in (*(at for at in boundaries if 0 < at < end), end):
            until = used
            while until < count and self.ends[until] <= boundary:
                until += 1
            if boundary > start:
                yield TextCut(self.data[start:boundary].decode(), self.tokens[used:until])
                start, used = boundary, until


def tokenize_text(text: str, tokenizer: Tokenizer, logprobs: int | None) -> TokenizedText:
    """Tokenize a text. logprobs: None for none. Every token has probability 1, logprob 0 and no alternatives."""
    ids = tokenizer.encode(text, special=False)
    data = text.encode()
    token_bytes = [tokenizer.token_bytes(id) for id in ids]
    ends = list(accumulate(map(len, token_bytes)))
    if b"".join(token_bytes) != data:
        # A normalizing tokenizer: its tokens do not concatenate to the text, so their ends are spread evenly.
        ends = [len(data) * (index + 1) // len(ids) for index in range(len(ids))]
    return TokenizedText(
        data, tuple(_build_token(id, raw, logprobs) for id, raw in zip(ids, token_bytes, strict=True)), tuple(ends)
    )


def build_prompt_token(id: int, tokenizer: Tokenizer) -> Token:
    """A token of a prompt."""
    return _build_token(id, tokenizer.token_bytes(id), None, special=tokenizer.is_special(id))


def _build_token(id: int, raw: bytes, logprobs: int | None, *, special: bool = False) -> Token:
    text = raw.decode(errors="replace")
    invalid_bytes = None if text.encode() == raw else raw
    if logprobs is None:
        return Token(id, text, raw=invalid_bytes, special=special)
    top = (Alternative(id, text, 0.0, invalid_bytes),) if logprobs else ()
    return Token(id, text, 0.0, top, invalid_bytes, rank=1)


def find_boundaries(tokenized: TokenizedText, pieces: Pieces, chunks: Chunks) -> Iterator[int]:
    """Find the ascending byte offsets between pieces; always between two characters."""
    if not isinstance(pieces, str):
        return accumulate(len(piece.encode()) for piece in pieces)
    match chunks:
        case "tokens":
            # Not within a character: a byte of the form 10xxxxxx continues one.
            return (end for end in tokenized.ends if end == len(tokenized.data) or tokenized.data[end] & 0xC0 != 0x80)
        case "characters":
            return accumulate(len(character.encode()) for character in pieces)
        case "words":
            return accumulate(len(word.encode()) for word in _split_words(pieces))
        case "whole":
            return iter(())


def _split_words(text: str) -> Iterator[str]:
    """Words, each with the white space before it."""
    start = 0
    for at in range(1, len(text)):
        if text[at].isspace() and not text[at - 1].isspace():
            yield text[start:at]
            start = at
    yield text[start:]
