"""Aligns the tokens of a text with its characters, however either is split.

The tokens in `logprobs.content`, concatenated, equal the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from ..core.events import Token

_REPLACED = "\ufffd".encode()


class Matched(Struct, frozen=True):
    """A token and its part of the text.

    listed: the token as `logprobs` lists it, cut to its text; unchanged if it could not
    be aligned; None if it is not listed.
    data: its UTF-8 bytes in the text.
    """

    token: Token
    listed: Token | None = None
    data: bytes = b""


class TokenMatcher:
    """Aligns the tokens of one text with its characters. The result does not depend on
    how either is split.

    Delimiter tokens, control tokens that are not in the text, and tokens that a stop
    string removed have no bytes in the text. A token that cannot be aligned is listed
    unchanged, without bytes.
    """

    __slots__ = ("_text", "_waiting")

    def __init__(self) -> None:
        self._text = b""  # not yet matched
        self._waiting: deque[tuple[Token, bool]] = deque()  # whether it may be in the text

    def feed(self, text: str, tokens: Iterable[Token]) -> list[Matched]:
        """Add text and tokens, and return the tokens that are decided."""
        self._text += text.encode("utf-8", "replace")
        self._waiting.extend((token, not token.markup) for token in tokens)
        return self._take_decided()

    def skip(self, tokens: Iterable[Token]) -> list[Matched]:
        """Add tokens that are not part of the text, in order with the others."""
        self._waiting.extend((token, False) for token in tokens)
        return self._take_decided()

    def close(self) -> list[Matched]:
        """End the text and return the remaining tokens."""
        out = [
            self._match(token) if expected else Matched(token) for token, expected in self._waiting
        ]
        self._waiting.clear()
        return out

    def rest(self) -> bytes:
        """Remove and return the text after the last aligned token, in UTF-8; it may
        begin within a character.
        """
        text = self._text
        self._text = b""
        return text

    def _take_decided(self) -> list[Matched]:
        out: list[Matched] = []
        while self._waiting:
            token, expected = self._waiting[0]
            own = token.utf8
            text = self._text
            # A token is settled once no later text can change its alignment: it already
            # matches, it is a special token that the text contradicts, or enough text
            # is known.
            if expected and not (
                (token.special and not own.startswith(text))
                or text.startswith(own)
                or len(text) >= max(len(own), len(_REPLACED))
            ):
                break
            self._waiting.popleft()
            out.append(self._match(token) if expected else Matched(token))
        return out

    def _match(self, token: Token) -> Matched:
        own = token.utf8
        text = self._text
        if text.startswith(own):
            return self._consume(token, token, own)
        if token.special:
            return Matched(token)
        # A token of invalid UTF-8 released U+FFFD, or nothing if later tokens completed
        # its character.
        if token.raw is not None:
            return self._consume(token, token, _REPLACED if text.startswith(_REPLACED) else b"")
        if not text:
            return Matched(token)
        if own.startswith(text):
            piece = text
        else:
            # Its beginning was consumed with what came before, such as a marker that
            # shares a token with text.
            piece = next((own[n:] for n in range(1, len(own)) if text.startswith(own[n:])), b"")
        if not piece:
            return Matched(token, token)
        return self._consume(
            token, msgspec.structs.replace(token, text=piece.decode("utf-8", "replace")), piece
        )

    def _consume(self, token: Token, listed: Token, data: bytes) -> Matched:
        """Remove the token's bytes from the text."""
        self._text = self._text[len(data) :]
        return Matched(token, listed, data)


class ContentTokens:
    """The listed tokens of one text, incrementally."""

    __slots__ = ("_matcher",)

    def __init__(self) -> None:
        self._matcher = TokenMatcher()

    def feed(self, text: str, tokens: Iterable[Token]) -> list[Token]:
        return [
            match.listed for match in self._matcher.feed(text, tokens) if match.listed is not None
        ]

    def close(self) -> list[Token]:
        """End the text and return the remaining tokens."""
        remaining = [match.listed for match in self._matcher.close() if match.listed is not None]
        self._matcher.rest()
        return remaining


def content_tokens(text: str, tokens: Sequence[Token]) -> list[Token]:
    """The listed tokens of a complete text."""
    content = ContentTokens()
    return content.feed(text, tokens) + content.close()
