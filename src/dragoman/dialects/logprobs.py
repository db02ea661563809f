"""Tokens with their logprobs as OpenAI's and vLLM's older dialects write them, and token counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from ..core.events import UNKNOWN_ID, Alternative, PromptTokens, Token, Usage
from .text import line_safe, logprob

_encode = msgspec.json.Encoder().encode


class Naming(Struct, frozen=True):
    """How a token is called on the wire: by its text, or as `token_id:N` (vLLM)."""

    as_ids: bool = False

    def of(self, token: Token | Alternative) -> str:
        return f"token_id:{token.id}" if self.as_ids and token.id != UNKNOWN_ID else token.text


class _TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class _TokenLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[_TopLogprob]


def chat_entries(tokens: Sequence[Token], top: int, naming: Naming) -> bytes:
    """The array `logprobs.content` (or `.refusal`). top: most alternatives of an entry."""
    name = naming.of
    return line_safe(_encode([_entry(token, top, name) for token in tokens]))


def _entry(token: Token, top: int, name: Callable[[Token | Alternative], str]) -> _TokenLogprob:
    alternatives = [
        _TopLogprob(name(other), logprob(other.logprob), list(other.text.encode() if other.raw is None else other.raw))
        for other in token.top[:top]
    ]
    return _TokenLogprob(name(token), logprob(token.logprob), list(token.utf8), alternatives)


class _CompletionLogprobs(Struct, frozen=True):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class Row(Struct, frozen=True):
    """One token of Completions' `logprobs`. Nothing precedes a prompt's first token: it has no score."""

    offset: int
    token: str
    score: float | None
    top: dict[str, float] | None


def completion_entries(rows: Sequence[Row]) -> bytes:
    """The object `logprobs` of a choice."""
    columns = _CompletionLogprobs(
        [row.offset for row in rows],
        [row.score for row in rows],
        [row.token for row in rows],
        [row.top for row in rows],
    )
    return line_safe(_encode(columns))


class Offsets:
    """Where each token of one choice begins in its text.

    An offset counts the characters that begin in the tokens before; it depends on the tokens alone, so that a stream
    and a whole answer agree however the text was cut.
    """

    def __init__(self, top: int, naming: Naming, special_in_text: bool, *, sampled_first: bool = False) -> None:
        self._top, self._name, self._special = top, naming.of, special_in_text
        self._sampled_first = sampled_first
        self._offset = 0

    def prompt(self, prompt: PromptTokens) -> list[Row]:
        """The echoed prompt. Whether its control tokens are part of its text is seen from the text's length."""
        length, rows = len(prompt.text), list[Row]()
        widths = [_width(token) for token in prompt.tokens]
        if sum(widths) != length:
            widths = [0 if token.special else width for token, width in zip(prompt.tokens, widths, strict=True)]
        offset = 0
        for token, width in zip(prompt.tokens, widths, strict=True):
            rows.append(self._row(token, offset) if rows else Row(offset, self._name(token), None, None))
            offset = min(offset + width, length)
        self._offset = length
        return rows

    def feed(self, tokens: Sequence[Token]) -> list[Row]:
        rows = list[Row]()
        for token in tokens:
            rows.append(self._row(token, self._offset))
            self._offset += 0 if token.special and not self._special else _width(token)
        return rows

    def _row(self, token: Token, offset: int) -> Row:
        return Row(offset, self._name(token), logprob(token.logprob), self._alternatives(token))

    def _alternatives(self, token: Token) -> dict[str, float]:
        """Best first, in vLLM's profile behind the sampled token, which is always there; of two that read alike the
        better counts."""
        found: dict[str, float] = {}
        best = token.top[: self._top]
        for other in (token, *best) if self._sampled_first else (*best, token):
            name, value = self._name(other), logprob(other.logprob)
            found[name] = max(found.get(name, value), value)
        return found


def _width(token: Token) -> int:
    """Characters that begin in this token."""
    if token.raw is None:
        return len(token.text)
    return sum(byte & 0xC0 != 0x80 for byte in token.raw)


class _PromptLogprob(Struct, frozen=True):
    logprob: float
    rank: int | None
    decoded_token: str


def prompt_logprobs(prompt: PromptTokens, top: int) -> bytes:
    """vLLM's `prompt_logprobs`: an object by token id for each position, the token itself first; null for the first."""
    scores: list[dict[str, _PromptLogprob] | None] = []
    for i, token in enumerate(prompt.tokens):
        if i == 0:
            scores.append(None)
            continue
        found = {str(token.id): _PromptLogprob(logprob(token.logprob), token.rank, token.text)}
        for rank, other in enumerate(token.top[:top], start=1):
            found.setdefault(str(other.id), _PromptLogprob(logprob(other.logprob), rank, other.text))
        scores.append(found)
    return line_safe(_encode(scores))


def token_ids(tokens: Sequence[Token]) -> bytes:
    return b"[%s]" % b",".join([b"%d" % token.id for token in tokens])


def usage(usage: Usage) -> bytes:
    """Details are null where they are unknown; a zero is a zero."""
    cached = b"null" if usage.cached is None else b'{"cached_tokens":%d}' % usage.cached
    reasoning = b"null" if usage.reasoning is None else b'{"reasoning_tokens":%d}' % usage.reasoning
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
        b'"prompt_tokens_details":%s,"completion_tokens_details":%s}'
    ) % (usage.prompt, usage.completion, usage.prompt + usage.completion, cached, reasoning)
