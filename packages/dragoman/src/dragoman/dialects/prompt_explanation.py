"""The response of the `explain` routes, an extension of this server."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from .json_encoding import replace_surrogates


class PromptDifference(Struct, frozen=True):
    """The first difference from an earlier prompt.

    at: index of the first differing token; None if this prompt continues the earlier
        one.
    before: the end of the common text.
    previous, now: some tokens of text from there.
    """

    previous_tokens: int
    common_tokens: int
    at: int | None
    before: str = ""
    previous: str = ""
    now: str = ""


class PromptExplanation(Struct, frozen=True):
    """A prompt as it was rendered and cached.

    cached_tokens: tokens in the prefix cache now; None if unknown.
    difference: None if no earlier prompt is known.
    """

    model: str
    prompt: str
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...]
    max_tokens: int
    cached_tokens: int | None
    difference: PromptDifference | None
    warnings: tuple[str, ...]


class ExplanationBody(Struct, frozen=True):
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
        ExplanationBody(
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
