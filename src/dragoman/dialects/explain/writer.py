"""The answer of an `explain` route. Knows no engine: all there is to say is an argument."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..text import printable


class Difference(Struct, frozen=True):
    """Against an earlier prompt. at: the first token that differs; None where this prompt goes on from that one.

    before: the end of what they share. previous, now: the text from there, some tokens long.
    """

    previous_tokens: int
    common_tokens: int
    at: int | None
    before: str = ""
    previous: str = ""
    now: str = ""


class Explained(Struct, frozen=True):
    """cached_tokens: that need not be computed now; None where the engine does not tell. difference: None where no
    earlier prompt is known.
    """

    model: str
    prompt: str
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...]
    max_tokens: int
    cached_tokens: int | None
    difference: Difference | None
    warnings: tuple[str, ...]


class _Answer(Struct, frozen=True):
    object: str
    model: str
    prompt: str
    prompt_tokens: int
    max_tokens: int
    cached_tokens: int | None
    previous: Difference | None
    tokens: tuple[int, ...]
    token_strs: list[str]
    warnings: tuple[str, ...]


def explanation(made: Explained) -> bytes:
    return msgspec.json.encode(
        _Answer(
            "prompt.explanation",
            made.model,
            printable(made.prompt),
            len(made.tokens),
            made.max_tokens,
            made.cached_tokens,
            made.difference,
            made.tokens,
            [printable(text) for text in made.token_strs],
            made.warnings,
        )
    )
