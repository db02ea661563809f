"""The grammar pieces that enforce the values of arguments."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Unsupported
from ..core.syntax import Alternation, FreeText, OptionalPieces, RepeatedPieces, SyntaxPiece
from .schema_alternatives import Schema
from .schema_keywords import ANNOTATIONS, ASSERTIONS, LIST_KEYWORDS, OBJECT_KEYWORDS

_MAX_ITEMS = 16
"""Maximum items of a list that is enforced in a family's own syntax."""


_NO_TEXT_KEYWORDS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *LIST_KEYWORDS,
    *OBJECT_KEYWORDS,
)


def build_free_text(schema: Schema, end: str, avoid: tuple[str, ...] = ()) -> FreeText:
    """Build a string that matches this schema, except for its `format`, which cannot be
    enforced.

    end: the text that ends the string.
    avoid: texts that may not occur in it.
    """
    pattern = schema.get("pattern")
    min_length = schema.get("minLength")
    max_length = schema.get("maxLength")
    return FreeText(
        end,
        avoid,
        _anchor_pattern(pattern) if isinstance(pattern, str) else None,
        min_length if isinstance(min_length, int) else 0,
        max_length if isinstance(max_length, int) else None,
        list_unenforced(schema, "type", "pattern", "minLength", "maxLength", *_NO_TEXT_KEYWORDS),
    )


def list_unenforced(schema: Schema, *enforced: str) -> tuple[str, ...]:
    """Return the keywords that restrict a text and are not enforced."""
    return tuple(sorted(schema.keys() & ASSERTIONS - set(enforced)))


def _anchor_pattern(pattern: str) -> str:
    """Convert a schema's pattern, which may match a part of the string, to one that
    matches the whole string.
    """
    # The unescaped characters outside groups and classes, by position.
    top_level: dict[int, str] = {}
    depth = 0
    escaped = False
    in_class = False
    for index, char in enumerate(pattern):
        if escaped or char == "\\":
            escaped = not escaped
        # Inside a class, brackets and bars are plain characters.
        elif in_class or char == "[":
            in_class = char != "]"
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif depth == 0:
            top_level[index] = char
    # With alternatives at the top level, `^` and `$` apply to one of them only, so they
    # may not be removed.
    if "|" in top_level.values():
        return f"(?s:.*)(?:{pattern})(?s:.*)"
    begins = top_level.get(0) == "^"
    ends = top_level.get(len(pattern) - 1) == "$"
    inner = pattern[begins : len(pattern) - ends]
    if begins and ends:
        return inner
    return f"{'' if begins else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"


def check_free_of_markers(text: str, markers: Sequence[str]) -> str:
    """Return the text. Raises Unsupported if it contains one of these markers."""
    forbidden = next((marker for marker in markers if marker in text), None)
    if forbidden is not None:
        raise Unsupported(
            f"{text[:100]!r} cannot be represented in this model's tool call format: it contains "
            f"{forbidden!r}."
        )
    return text


def build_one_of(options: Sequence[tuple[SyntaxPiece, ...]]) -> tuple[SyntaxPiece, ...]:
    return options[0] if len(options) == 1 else (Alternation(tuple(options)),)


def join_arguments(
    arguments: Sequence[tuple[tuple[SyntaxPiece, ...], bool]], comma: SyntaxPiece
) -> tuple[SyntaxPiece, ...]:
    """Join arguments with commas, required ones (True) before optional ones."""
    required_arguments = [pieces for pieces, required in arguments if required]
    optional_arguments = [pieces for pieces, required in arguments if not required]
    joined: list[SyntaxPiece] = []
    for pieces in required_arguments:
        joined.extend((comma, *pieces) if joined else pieces)
    if required_arguments:
        return *joined, *(OptionalPieces((comma, *pieces)) for pieces in optional_arguments)
    # Without a required argument any optional one may come first, and only the first
    # has no comma before it.
    first = tuple(
        (
            *pieces,
            *(OptionalPieces((comma, *following)) for following in optional_arguments[index + 1 :]),
        )
        for index, pieces in enumerate(optional_arguments)
    )
    return (OptionalPieces((Alternation(first),)),) if first else ()


def check_keywords(schema: Schema, *enforced: str) -> None:
    """Raise Unsupported if a schema has keywords other than these and annotations."""
    others = schema.keys() - {"type", *enforced} - ANNOTATIONS
    if others:
        raise Unsupported(f"{min(others)!r} can only be enforced in JSON.")


def read_bounds(schema: Schema) -> tuple[int, int | None]:
    """Return the minimum and maximum number of items, None for no maximum.

    Raises Unsupported for more than `_MAX_ITEMS`, since the grammar has one piece per
    item.
    """
    least = schema.get("minItems", 0)
    most = schema.get("maxItems")
    if not isinstance(least, int) or not (most is None or isinstance(most, int)):
        raise Unsupported("The bounds of a list must be integers.")
    if (least if most is None else most) > _MAX_ITEMS or (most is not None and least > most):
        raise Unsupported(f"More than {_MAX_ITEMS} items can only be enforced in JSON.")
    return least, most


def join_items(
    item: tuple[SyntaxPiece, ...], comma: SyntaxPiece, least: int, most: int | None
) -> tuple[SyntaxPiece, ...]:
    """Build a list of `least` to `most` items; None means no maximum."""
    tail: tuple[SyntaxPiece, ...] = (RepeatedPieces((comma, *item)),) if most is None else ()
    for number in range(least if most is None else most, 1, -1):
        following = (comma, *item, *tail)
        tail = following if number <= least else (OptionalPieces(following),)
    items = (*item, *tail)
    if most == 0:
        return ()
    return items if least else (OptionalPieces(items),)
