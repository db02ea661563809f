"""Which tokens make up a text, as OpenAI's `logprobs` list them: joined, they are the text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from ..core.events import Token

_REPLACED = "\ufffd".encode()


class Matched(Struct, frozen=True):
    """A token and its piece of the text.

    listed: the token as far as it is in the text; None where it is not. data: the UTF-8 bytes of the text that it has.
    """

    token: Token
    listed: Token | None = None
    data: bytes = b""


class TokenMatcher:
    """Matches the tokens of one text with its characters. The result does not depend on how either is cut.

    Tokens of marks, control tokens that are not in the text, and what a stop string cut off have no piece of it. A
    token that matches nothing is listed as it is, without a piece.
    """

    __slots__ = ("_text", "_waiting")

    def __init__(self) -> None:
        self._text = b""  # not yet matched
        self._waiting: deque[tuple[Token, bool]] = deque()  # whether it may be in the text

    def feed(self, text: str, tokens: Iterable[Token]) -> list[Matched]:
        """The next tokens of the text, as far as they can be told."""
        self._text += text.encode("utf-8", "replace")
        self._waiting.extend((token, not token.markup) for token in tokens)
        return self._take_decided()

    def skip(self, tokens: Iterable[Token]) -> list[Matched]:
        """Tokens that are none of the text, in their place among the others."""
        self._waiting.extend((token, False) for token in tokens)
        return self._take_decided()

    def close(self) -> list[Matched]:
        """The text ends here: the tokens that were left."""
        out = [self._match(token) if expected else Matched(token) for token, expected in self._waiting]
        self._waiting.clear()
        return out

    def rest(self) -> str:
        """Text behind the last token that was matched; it is taken out."""
        text, self._text = self._text.decode("utf-8", "replace"), b""
        return text

    def _take_decided(self) -> list[Matched]:
        out: list[Matched] = []
        while self._waiting:
            token, expected = self._waiting[0]
            if expected and not self._is_decided(token):
                break
            self._waiting.popleft()
            out.append(self._match(token) if expected else Matched(token))
        return out

    def _is_decided(self, token: Token) -> bool:
        """Whether no text that may follow changes what the token matches."""
        own, text = token.utf8, self._text
        if token.special and not own.startswith(text):
            return True
        return text.startswith(own) or len(text) >= max(len(own), len(_REPLACED))

    def _match(self, token: Token) -> Matched:
        own, text = token.utf8, self._text
        if text.startswith(own):
            return self._matched(token, token, own)
        if token.special:
            return Matched(token)
        if token.raw is not None:
            return self._matched(token, token, _REPLACED if text.startswith(_REPLACED) else b"")
        if not text:
            return Matched(token)
        if own.startswith(text):
            piece = text
        else:
            piece = next((own[n:] for n in range(1, len(own)) if text.startswith(own[n:])), b"")
        if not piece:
            return Matched(token, token)
        return self._matched(token, msgspec.structs.replace(token, text=piece.decode("utf-8", "replace")), piece)

    def _matched(self, token: Token, listed: Token, data: bytes) -> Matched:
        self._text = self._text[len(data) :]
        return Matched(token, listed, data)


class ContentTokens:
    """The tokens of one text that are listed, as they come."""

    __slots__ = ("_matcher",)

    def __init__(self) -> None:
        self._matcher = TokenMatcher()

    def feed(self, text: str, tokens: Iterable[Token]) -> list[Token]:
        return [found.listed for found in self._matcher.feed(text, tokens) if found.listed is not None]

    def close(self) -> list[Token]:
        """The text ends here: the tokens that were left."""
        left = [found.listed for found in self._matcher.close() if found.listed is not None]
        self._matcher.rest()
        return left


def content_tokens(text: str, tokens: Sequence[Token]) -> list[Token]:
    """Those of a whole text."""
    found = ContentTokens()
    return found.feed(text, tokens) + found.close()
