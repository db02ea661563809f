"""Renders logprobs in the formats of Chat Completions, Completions or vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ..core.events import UNKNOWN_TOKEN_ID, Alternative, PromptTokens, Token
from .json_encoding import clamp_logprob, escape_line_breaks

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
