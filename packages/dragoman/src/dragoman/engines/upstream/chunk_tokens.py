"""Reads the tokens of a chunk, from logprobs or ids."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import EngineError
from ...core.events import UNKNOWN_TOKEN_ID, Alternative, Token
from .wire import (
    ChunkChoice,
    PromptLogprobRows,
    TokenLogprobEntry,
)

Tokens = tuple[Token, ...]


_TOKEN_ID_PREFIX = "token_id:"


def read_tokens(choice: ChunkChoice) -> tuple[Token, ...]:
    """Read the tokens of a chunk in sampling order, from logprobs or ids. Text is empty
    if only ids are known.
    """
    logprobs = choice.logprobs
    ids = choice.token_ids or []
    if logprobs is None:
        return tuple(Token(id, "") for id in ids)
    tokens: list[Token] = []
    if logprobs.tokens is not None:
        scores = logprobs.token_logprobs or [None] * len(logprobs.tokens)
        tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
        token_ids = (
            ids if len(ids) == len(logprobs.tokens) else [UNKNOWN_TOKEN_ID] * len(logprobs.tokens)
        )
        for id, text, score, top in zip(token_ids, logprobs.tokens, scores, tops, strict=False):
            # A completion's alternatives have no ids and no order.
            ranked = sorted((top or {}).items(), key=lambda entry: -entry[1])
            others = tuple(
                Alternative(UNKNOWN_TOKEN_ID, other, logprob) for other, logprob in ranked
            )
            tokens.append(Token(id, text, score, others))
        return tuple(tokens)
    entries = (logprobs.content or []) + (logprobs.refusal or [])
    if not entries:
        return tuple(Token(id, "") for id in ids)
    token_ids = ids if len(ids) == len(entries) else [UNKNOWN_TOKEN_ID] * len(entries)
    for id, entry in zip(token_ids, entries, strict=True):
        text, raw = _read_text(entry)
        alternatives: list[Alternative] = []
        for other in entry.top_logprobs or ():
            other_text, other_raw = _read_text(other)
            logprob = 0.0 if other.logprob is None else other.logprob
            alternatives.append(
                Alternative(_find_id(other, UNKNOWN_TOKEN_ID), other_text, logprob, other_raw)
            )
        tokens.append(Token(_find_id(entry, id), text, entry.logprob, tuple(alternatives), raw))
    return tuple(tokens)


def read_prompt_tokens(ids: Sequence[int], rows: PromptLogprobRows, top: int) -> tuple[Token, ...]:
    """Read the tokens of a prompt. The first token has no row, so its text is empty.

    A row contains the token itself, whatever its rank, and the alternatives of the best
    ranks.

    top: number of alternatives for each token.

    Raises: EngineError if the rows do not match the ids.
    """
    if len(rows) != len(ids):
        raise EngineError("The upstream did not return the logprobs of the prompt.")
    tokens: list[Token] = []
    for id, row in zip(ids, rows, strict=True):
        if not row:
            tokens.append(Token(id, ""))
            continue
        token_entry = row.get(str(id))
        if token_entry is None:
            raise EngineError("The upstream did not return the logprobs of the prompt.")
        ranked = sorted(
            (entry.rank, other, entry.decoded_token or "", entry.logprob)
            for key, entry in row.items()
            if entry.rank is not None and (other := _parse_id(key)) is not None
        )
        alternatives = tuple(
            Alternative(other, text, logprob)
            for rank, other, text, logprob in ranked
            if rank <= top
        )
        tokens.append(
            Token(
                id,
                token_entry.decoded_token or "",
                token_entry.logprob,
                alternatives,
                rank=token_entry.rank,
            )
        )
    return tuple(tokens)


def _find_id(entry: TokenLogprobEntry, fallback: int) -> int:
    number = entry.token.removeprefix(_TOKEN_ID_PREFIX)
    id = None if number == entry.token else _parse_id(number)
    return fallback if id is None else id


def _parse_id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def _read_text(entry: TokenLogprobEntry) -> tuple[str, bytes | None]:
    """Read a token's text, and its bytes if they differ from the text."""
    if entry.bytes is None or not all(0 <= byte < 256 for byte in entry.bytes):
        return entry.token, None
    raw = bytes(entry.bytes)
    text = raw.decode("utf-8", "replace")
    return text, None if text.encode() == raw else raw
