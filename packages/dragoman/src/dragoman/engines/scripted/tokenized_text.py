"""A text with its tokens, cut where tokens end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from msgspec import Struct

from ...core.events import (
    Alternative,
    Token,
)
from ...core.tokenizer import Tokenizer
from ..script.script import (
    Chunks,
    Pieces,
)


class TextCut(Struct, frozen=True):
    """A piece of text with the tokens that end in it."""

    text: str
    tokens: tuple[Token, ...]


class TokenizedText(Struct, frozen=True):
    """A text in UTF-8, its tokens, and for each token the byte at which it ends. Ends
    never decrease.
    """

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
        """Split the text of the first `count` tokens at `boundaries`; each piece has
        the tokens that end in it.
        """
        start = 0
        used = 0
        end = self.count_whole_bytes(count)
        for boundary in (*(at for at in boundaries if 0 < at < end), end):
            until = used
            while until < count and self.ends[until] <= boundary:
                until += 1
            if boundary > start:
                yield TextCut(self.data[start:boundary].decode(), self.tokens[used:until])
                start = boundary
                used = until


def tokenize_text(text: str, tokenizer: Tokenizer, logprobs: int | None) -> TokenizedText:
    """Tokenize a text. Every token has probability 1: its logprob is 0, and it is its
    only alternative.

    logprobs: number of requested alternatives; None means no logprobs.
    """
    ids = tokenizer.encode(text, special=False)
    data = text.encode()
    token_bytes = [tokenizer.token_bytes(id) for id in ids]
    ends = list(accumulate(map(len, token_bytes)))
    if b"".join(token_bytes) != data:
        # The tokens of a normalizing tokenizer do not concatenate to the text, so their
        # ends are spread evenly.
        ends = [len(data) * (index + 1) // len(ids) for index in range(len(ids))]
    return TokenizedText(
        data,
        tuple(_build_token(id, raw, logprobs) for id, raw in zip(ids, token_bytes, strict=True)),
        tuple(ends),
    )


def build_prompt_token(id: int, tokenizer: Tokenizer) -> Token:
    """Build a token of a prompt, without a logprob."""
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
            return (
                end
                for end in tokenized.ends
                if end == len(tokenized.data) or tokenized.data[end] & 0xC0 != 0x80
            )
        case "characters":
            return accumulate(len(character.encode()) for character in pieces)
        case "words":
            # Each word includes the white space before it.
            starts = (
                at
                for at in range(1, len(pieces))
                if pieces[at].isspace() and not pieces[at - 1].isspace()
            )
            spans = pairwise([0, *starts, len(pieces)])
            return accumulate(len(pieces[start:end].encode()) for start, end in spans)
        case "whole":
            return iter(())
