"""The answer of an `explain` route. Knows no engine: all there is to say is an argument."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ..json_encoding import replace_surrogates


class PromptDifference(Struct, frozen=True):
    """Against an earlier prompt. at: the first token that differs; None where this prompt goes on from that one.

    before: the end of what they share. previous, now: the text from there, some tokens long.
    """

    previous_tokens: int
    common_tokens: int
    at: int | None
    before: str = ""
    previous: str = ""
    now: str = ""


class PromptExplanation(Struct, frozen=True):
    """cached_tokens: that need not be computed now; None where the engine does not tell. difference: None where no
    earlier prompt is known.
    """

    model: str
    prompt: str
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...]
    max_tokens: int
    cached_tokens: int | None
    difference: PromptDifference | None
    warnings: tuple[str, ...]


class _ExplanationBody(Struct, frozen=True):
    object: str
    model: str
    prompt: str
    prompt_tokens: int
    max_tokens: int
    cached_tokens: int | None
    previous: PromptDifference | None
    tokens: tuple[int, ...]
    token_strs: list[str]
    warnings: tuple[str, ...]


def render_explanation(explanation: PromptExplanation) -> bytes:
    return msgspec.json.encode(
        _ExplanationBody(
            "prompt.explanation",
            explanation.model,
            replace_surrogates(explanation.prompt),
            len(explanation.tokens),
            explanation.max_tokens,
            explanation.cached_tokens,
            explanation.difference,
            explanation.tokens,
            [replace_surrogates(text) for text in explanation.token_strs],
            explanation.warnings,
        )
    )
