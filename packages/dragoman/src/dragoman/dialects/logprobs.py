"""Rendering of logprobs for Chat Completions, Completions and vLLM, alignment of tokens
with text, and token counts.

The tokens in `logprobs.content`, concatenated, equal the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from ..core.events import Alternative, PromptTokens, Token, UNKNOWN_TOKEN_ID, Usage
from .json_encoding import clamp_logprob, escape_line_breaks

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


_encode = msgspec.json.Encoder().encode


class TokenNaming(Struct, frozen=True):
    """The representation of a token on the wire: its text, or `token_id:N` (vLLM)."""

    as_ids: bool = False

    def get_name(self, token: Token | Alternative) -> str:
        return (
            f"token_id:{token.id}" if self.as_ids and token.id != UNKNOWN_TOKEN_ID else token.text
        )


class ChatTopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatTopLogprob]


def render_chat_logprobs(tokens: Sequence[Token], top: int, naming: TokenNaming) -> bytes:
    """The array `logprobs.content` (or `.refusal`). top: maximum alternatives of an
    entry.
    """
    get_name = naming.get_name
    entries = list[ChatTokenLogprob]()
    for token in tokens:
        alternatives = [
            ChatTopLogprob(
                get_name(alternative),
                clamp_logprob(alternative.logprob),
                list(alternative.text.encode() if alternative.raw is None else alternative.raw),
            )
            for alternative in token.top[:top]
        ]
        entries.append(
            ChatTokenLogprob(
                get_name(token), clamp_logprob(token.logprob), list(token.utf8), alternatives
            )
        )
    return escape_line_breaks(_encode(entries))


class CompletionLogprobs(Struct, frozen=True):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class LogprobRow(Struct, frozen=True):
    """One token of Completions' `logprobs`. The first token of a prompt has no logprob
    because nothing precedes it.
    """

    offset: int
    token: str
    logprob: float | None
    top: dict[str, float] | None


def render_completion_logprobs(rows: Sequence[LogprobRow]) -> bytes:
    """The object `logprobs` of a choice."""
    columns = CompletionLogprobs(
        [row.offset for row in rows],
        [row.logprob for row in rows],
        [row.token for row in rows],
        [row.top for row in rows],
    )
    return escape_line_breaks(_encode(columns))


class CompletionLogprobBuilder:
    """Builds the rows of Completions' `logprobs` for one choice, with the start of each
    token in its text.

    top: maximum alternatives per token.
    special_in_text: the text contains special tokens.
    sampled_first: the sampled token precedes its alternatives (vLLM's order).

    An offset counts the characters that begin in the tokens before. It depends on the
    tokens alone, so that streamed and full responses agree however the text was split.
    """

    def __init__(
        self, top: int, naming: TokenNaming, special_in_text: bool, *, sampled_first: bool = False
    ) -> None:
        self._top = top
        self._get_name = naming.get_name
        self._special = special_in_text
        self._sampled_first = sampled_first
        self._offset = 0

    def add_prompt(self, prompt: PromptTokens) -> list[LogprobRow]:
        """Rows of the echoed prompt. Its text's length shows whether its control tokens
        are part of it.
        """
        length = len(prompt.text)
        rows = list[LogprobRow]()
        widths = [_count_characters(token) for token in prompt.tokens]
        if sum(widths) != length:
            widths = [
                0 if token.special else width
                for token, width in zip(prompt.tokens, widths, strict=True)
            ]
        offset = 0
        for token, width in zip(prompt.tokens, widths, strict=True):
            rows.append(
                self._build_row(token, offset)
                if rows
                else LogprobRow(offset, self._get_name(token), None, None)
            )
            offset = min(offset + width, length)
        self._offset = length
        return rows

    def add_tokens(self, tokens: Sequence[Token]) -> list[LogprobRow]:
        rows = list[LogprobRow]()
        for token in tokens:
            rows.append(self._build_row(token, self._offset))
            self._offset += 0 if token.special and not self._special else _count_characters(token)
        return rows

    def _build_row(self, token: Token, offset: int) -> LogprobRow:
        # Alternatives come best first; the sampled token is first in vLLM's profile,
        # last otherwise. Of two with the same text the higher logprob is used.
        logprobs: dict[str, float] = {}
        best = token.top[: self._top]
        for alternative in (token, *best) if self._sampled_first else (*best, token):
            name = self._get_name(alternative)
            value = clamp_logprob(alternative.logprob)
            logprobs[name] = max(logprobs.get(name, value), value)
        return LogprobRow(offset, self._get_name(token), clamp_logprob(token.logprob), logprobs)


def _count_characters(token: Token) -> int:
    """Characters that begin in this token."""
    if token.raw is None:
        return len(token.text)
    return sum(byte & 0xC0 != 0x80 for byte in token.raw)


class PromptLogprob(Struct, frozen=True):
    logprob: float
    rank: int | None
    decoded_token: str


def render_prompt_logprobs(prompt: PromptTokens, top: int) -> bytes:
    """vLLM's `prompt_logprobs`: an object by token id for each position, the token
    itself first; null for the first.
    """
    positions: list[dict[str, PromptLogprob] | None] = []
    for i, token in enumerate(prompt.tokens):
        if i == 0:
            positions.append(None)
            continue
        logprobs = {
            str(token.id): PromptLogprob(clamp_logprob(token.logprob), token.rank, token.text)
        }
        for rank, alternative in enumerate(token.top[:top], start=1):
            logprobs.setdefault(
                str(alternative.id),
                PromptLogprob(clamp_logprob(alternative.logprob), rank, alternative.text),
            )
        positions.append(logprobs)
    return escape_line_breaks(_encode(positions))


def render_token_ids(tokens: Sequence[Token]) -> bytes:
    return b"[%s]" % b",".join([b"%d" % token.id for token in tokens])


def render_usage(usage: Usage) -> bytes:
    """Details are null if unknown, which differs from zero."""
    counts = ((b"cached_tokens", usage.cached), (b"cache_write_tokens", usage.written))
    details = [b'"%s":%d' % (name, count) for name, count in counts if count is not None]
    cached = b"{%s}" % b",".join(details) if details else b"null"
    reasoning = b"null" if usage.reasoning is None else b'{"reasoning_tokens":%d}' % usage.reasoning
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":%s,"completion_tokens_details":%s}'
    ) % (usage.prompt, usage.completion, usage.prompt + usage.completion, cached, reasoning)
