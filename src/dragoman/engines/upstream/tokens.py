"""The tokens of a chunk, out of what an upstream tells of them: ids, logprobs, or nothing. Pure."""

from __future__ import annotations

from ...core.events import UNKNOWN_ID, Alternative, Token
from .wire import Choice, Entry

_BY_ID = "token_id:"


def tokens_of(choice: Choice) -> tuple[Token, ...]:
    """In the order in which they were sampled. Text is empty where only ids are told."""
    told, ids = choice.logprobs, choice.token_ids or []
    if told is None:
        return tuple(Token(id, "") for id in ids)
    if told.tokens is not None:
        scores = told.token_logprobs or [None] * len(told.tokens)
        tops = told.top_logprobs or [None] * len(told.tokens)
        known = ids if len(ids) == len(told.tokens) else [UNKNOWN_ID] * len(told.tokens)
        rows = zip(known, told.tokens, scores, tops, strict=False)
        return tuple(Token(id, text, score, _ranked(top)) for id, text, score, top in rows)
    entries = (told.content or []) + (told.refusal or [])
    if not entries:
        return tuple(Token(id, "") for id in ids)
    known = ids if len(ids) == len(entries) else [UNKNOWN_ID] * len(entries)
    return tuple(_token(id, entry) for id, entry in zip(known, entries, strict=True))


def _ranked(top: dict[str, float] | None) -> tuple[Alternative, ...]:
    """A completion's alternatives have no ids."""
    ranked = sorted((top or {}).items(), key=lambda entry: -entry[1])
    return tuple(Alternative(UNKNOWN_ID, text, score) for text, score in ranked)


def _token(id: int, entry: Entry) -> Token:
    text, raw = _text(entry)
    top = tuple(_alternative(other) for other in entry.top_logprobs or ())
    return Token(_id(entry, id), text, entry.logprob, top, raw)


def _alternative(entry: Entry) -> Alternative:
    text, raw = _text(entry)
    return Alternative(_id(entry, UNKNOWN_ID), text, 0.0 if entry.logprob is None else entry.logprob, raw)


def _id(entry: Entry, known: int) -> int:
    number = entry.token.removeprefix(_BY_ID)
    named = number != entry.token and number.isascii() and number.isdigit()
    return int(number) if named and len(number) < 12 else known


def _text(entry: Entry) -> tuple[str, bytes | None]:
    """What it reads as, and its bytes where the text is not them."""
    if entry.bytes is None or not all(0 <= byte < 256 for byte in entry.bytes):
        return entry.token, None
    raw = bytes(entry.bytes)
    text = raw.decode("utf-8", "replace")
    return text, None if text.encode() == raw else raw
