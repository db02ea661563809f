"""Reads the tokens of a chunk from ids or logprobs, if present. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.errors import EngineError
from ...core.events import UNKNOWN_TOKEN_ID, Alternative, Token
from .wire import ChunkChoice, PromptLogprobEntry, PromptLogprobRows, TokenLogprobEntry

_TOKEN_ID_PREFIX = "token_id:"


def read_tokens(choice: ChunkChoice) -> tuple[Token, ...]:
    """Read tokens in sampling order. Text is empty if only ids are known."""
    logprobs, ids = choice.logprobs, choice.token_ids or []
    if logprobs is None:
        return tuple(Token(id, "") for id in ids)
    if logprobs.tokens is not None:
        scores = logprobs.token_logprobs or [None] * len(logprobs.tokens)
        tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
        known = ids if len(ids) == len(logprobs.tokens) else [UNKNOWN_TOKEN_ID] * len(logprobs.tokens)
        rows = zip(known, logprobs.tokens, scores, tops, strict=False)
        return tuple(Token(id, text, score, _rank_alternatives(top)) for id, text, score, top in rows)
    entries = (logprobs.content or []) + (logprobs.refusal or [])
    if not entries:
        return tuple(Token(id, "") for id in ids)
    known = ids if len(ids) == len(entries) else [UNKNOWN_TOKEN_ID] * len(entries)
    return tuple(_build_token(id, entry) for id, entry in zip(known, entries, strict=True))


def read_prompt_tokens(ids: Sequence[int], rows: PromptLogprobRows, top: int) -> tuple[Token, ...]:
    """Read the tokens of a prompt. The first one has no row, and no text here.

    top: alternatives for each token. Raises EngineError if the rows are not those of the ids.
    """
    if len(rows) != len(ids):
        raise EngineError("The upstream did not return the logprobs of the prompt.")
    return tuple(_build_prompt_token(id, row or {}, top) for id, row in zip(ids, rows, strict=True))


def _build_prompt_token(id: int, row: dict[str, PromptLogprobEntry], top: int) -> Token:
    """The row has the token itself, whatever its rank, and the alternatives of the best ranks."""
    own = row.get(str(id))
    if own is None:
        if row:
            raise EngineError("The upstream did not return the logprobs of the prompt.")
        return Token(id, "")
    ranked = sorted(
        (entry.rank, int(key), entry) for key, entry in row.items() if entry.rank is not None and key.isdecimal()
    )
    alternatives = tuple(
        Alternative(key, entry.decoded_token or "", entry.logprob) for rank, key, entry in ranked if rank <= top
    )
    return Token(id, own.decoded_token or "", own.logprob, alternatives, rank=own.rank)


def _rank_alternatives(top: dict[str, float] | None) -> tuple[Alternative, ...]:
    """Rank alternatives by logprob; those of a completion have no ids."""
    ranked = sorted((top or {}).items(), key=lambda entry: -entry[1])
    return tuple(Alternative(UNKNOWN_TOKEN_ID, text, score) for text, score in ranked)


def _build_token(id: int, entry: TokenLogprobEntry) -> Token:
    text, raw = _read_text(entry)
    top = tuple(_build_alternative(other) for other in entry.top_logprobs or ())
    return Token(_find_id(entry, id), text, entry.logprob, top, raw)


def _build_alternative(entry: TokenLogprobEntry) -> Alternative:
    text, raw = _read_text(entry)
    return Alternative(_find_id(entry, UNKNOWN_TOKEN_ID), text, 0.0 if entry.logprob is None else entry.logprob, raw)


def _find_id(entry: TokenLogprobEntry, fallback: int) -> int:
    number = entry.token.removeprefix(_TOKEN_ID_PREFIX)
    is_number = number != entry.token and number.isascii() and number.isdigit()
    return int(number) if is_number and len(number) < 12 else fallback


def _read_text(entry: TokenLogprobEntry) -> tuple[str, bytes | None]:
    """Read a token's text, and its bytes if they differ from the text."""
    if entry.bytes is None or not all(0 <= byte < 256 for byte in entry.bytes):
        return entry.token, None
    raw = bytes(entry.bytes)
    text = raw.decode("utf-8", "replace")
    return text, None if text.encode() == raw else raw
