"""What may be written for one argument where calls are enforced, a kind at a time. Knows no syntax of any model."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Unsupported
from ..core.syntax import FreeText, Maybe, OneOf, Piece
from .values import Json, encode, resolve

Schema = dict[str, Json]

MOST_ARGUMENTS = 128
MOST_COPIED = 512 * 1024
"""Characters of definitions, over all arguments that carry them along."""


def alternatives(schema: Schema) -> list[Schema]:
    """The schema as several, each of one type and each complete: a value that follows one of them follows it."""
    return _alternatives(schema, set())


def _alternatives(schema: Schema, seen: set[str]) -> list[Schema]:
    """seen: the references that were followed. What they stand for is among the alternatives already."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in seen:
            return []
        seen.add(reference)
    inner = _options(schema)
    if inner:
        defs: Schema = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return [part for one in inner for part in _alternatives({**defs, **one}, seen)]
    if "const" in schema:
        return [{"const": schema["const"]}]
    values, types = schema.get("enum"), schema.get("type")
    if isinstance(values, list):
        return [{"const": value} for value in values]
    if isinstance(types, list):
        return [{**schema, "type": name} for name in types]
    return [schema]


def check_size(schemas: Sequence[Schema], defs: Schema) -> None:
    """Raises Unsupported where writing each argument for itself would say the same too often."""
    if len(schemas) > MOST_ARGUMENTS:
        raise Unsupported(f"More than {MOST_ARGUMENTS} arguments cannot be enforced in this model's tool call format.")
    copies = sum("const" not in one for schema in schemas for one in alternatives(schema))
    if copies * len(encode(defs)) > MOST_COPIED:
        raise Unsupported("The tool definitions are too large to be enforced in this model's tool call format.")


def _options(schema: Schema) -> list[Schema]:
    """The schemas of which one is to be followed, where this one only names them."""
    for union in ("anyOf", "oneOf"):
        options = _objects(schema.get(union))
        if options:
            return options
    reference, parts = schema.get("$ref"), _objects(schema.get("allOf"))
    if isinstance(reference, str) and isinstance(target := resolve(reference, schema), dict):
        return [target]
    return parts if len(parts) == 1 and "type" not in schema else []


def _objects(value: Json) -> list[Schema]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def free_text(schema: Schema, end: str, avoid: tuple[str, ...] = ()) -> FreeText:
    """A string that follows this schema. Its `format` is taken for a remark."""
    pattern, least, most = schema.get("pattern"), schema.get("minLength"), schema.get("maxLength")
    return FreeText(
        end,
        avoid,
        _whole(pattern) if isinstance(pattern, str) else None,
        least if isinstance(least, int) else 0,
        most if isinstance(most, int) else None,
    )


def _whole(pattern: str) -> str:
    """The pattern of a schema holds for a part of the string; this one for all of it."""
    top = _top_level(pattern)
    if top.get(0) == "^" and top.get(len(pattern) - 1) == "$" and "|" not in top.values():
        return pattern[1:-1]
    return f"(?s:.*)(?:{pattern})(?s:.*)"


def _top_level(pattern: str) -> dict[int, str]:
    """The characters, by their places, that stand in no group and in no class, and are not escaped."""
    found: dict[int, str] = {}
    depth, escaped, inside = 0, False, False
    for place, char in enumerate(pattern):
        if escaped or char == "\\":
            escaped = not escaped
        elif inside or char == "[":
            inside = char != "]"
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif depth == 0:
            found[place] = char
    return found


def plain(word: str, marks: Sequence[str]) -> str:
    """The text, if none of these marks stands in it. Raises Unsupported."""
    found = next((mark for mark in marks if mark in word), None)
    if found is not None:
        raise Unsupported(
            f"{word[:100]!r} cannot be represented in this model's tool call format: it contains {found!r}."
        )
    return word


def one_of(options: Sequence[tuple[Piece, ...]]) -> tuple[Piece, ...]:
    return options[0] if len(options) == 1 else (OneOf(tuple(options)),)


def listed(arguments: Sequence[tuple[tuple[Piece, ...], bool]], comma: Piece) -> tuple[Piece, ...]:
    """Arguments with commas between them, those that must be there (True) before those that need not."""
    needed = [pieces for pieces, required in arguments if required]
    rest = [pieces for pieces, required in arguments if not required]
    out: list[Piece] = []
    for pieces in needed:
        out.extend((comma, *pieces) if out else pieces)
    if needed:
        return *out, *(Maybe((comma, *pieces)) for pieces in rest)
    first = tuple(
        (*pieces, *(Maybe((comma, *later)) for later in rest[index + 1 :])) for index, pieces in enumerate(rest)
    )
    return (Maybe((OneOf(first),)),) if first else ()
