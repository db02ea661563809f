"""Reads content that is a text, a part or a list of parts, as texts by kind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import cast

from ...core.errors import EngineError
from ...core.events import ReasoningDelta, RefusalDelta, TextDelta
from .answer_items import TextKind

log = logging.getLogger(__name__)

_KINDS: dict[str, TextKind] = {
    "text": TextDelta,
    "output_text": TextDelta,
    "thinking": ReasoningDelta,
    "reasoning": ReasoningDelta,
    "reasoning_content": ReasoningDelta,
    "reasoning_text": ReasoningDelta,
    "summary_text": ReasoningDelta,
    "reasoning.text": ReasoningDelta,
    "reasoning.summary": ReasoningDelta,
    "refusal": RefusalDelta,
}
_TEXT_FIELDS = (
    "text", "thinking", "reasoning", "reasoning_content", "summary", "refusal", "content",
    "value",
)  # fmt: skip
_CITATIONS = frozenset({"reference", "citation"})
"""Mistral's types of parts that only refer to sources."""


def read_content(content: object, kind: TextKind = TextDelta) -> Iterator[tuple[TextKind, str]]:
    """Read content: a text, a part or a list of them, as Mistral sends.

    kind: the kind of texts that do not state their own.

    Raises: EngineError for a part that is not text.
    """
    match content:
        case None:
            return
        case str():
            if content:
                yield kind, content
        case list():
            for part in cast("list[object]", content):
                yield from read_content(part, kind)
        case dict():
            yield from _read_part(cast("dict[str, object]", content), kind)
        case _:
            raise EngineError(
                f"The upstream sent content that is neither text nor parts: {content!r:.80}."
            )


def join_content(content: object, kind: TextKind = TextDelta) -> str:
    """Return the text of content whose parts are all of one kind."""
    return "".join(text for _, text in read_content(content, kind))


def _read_part(part: dict[str, object], kind: TextKind) -> Iterator[tuple[TextKind, str]]:
    type = part.get("type")
    if type in _CITATIONS:
        log.warning("an upstream's content part of type %.40r was left out", type)
        return
    # A thought's own parts have the type "text".
    is_known = type is None or (isinstance(type, str) and type in _KINDS)
    if not is_known:
        raise EngineError(f"The upstream sent a content part of type {type!r:.80}, not text.")
    if isinstance(type, str) and kind is TextDelta:
        kind = _KINDS[type]
    for field in _TEXT_FIELDS:
        if part.get(field) is not None:
            yield from read_content(part[field], kind)
            return
