"""What may be written for one argument where calls are enforced, a kind at a time. Knows no syntax of any model."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.syntax import FreeText, Maybe, OneOf, Piece
from .values import DEEPEST, Json, resolve

Schema = dict[str, Json]


def alternatives(schema: Schema, deepest: int = DEEPEST) -> list[Schema]:
    """The schema as several, each of one type and each complete: a value that follows one of them follows it."""
    inner = _options(schema) if deepest else []
    if inner:
        defs: Schema = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return [part for one in inner for part in alternatives({**defs, **one}, deepest - 1)]
    if "const" in schema:
        return [{"const": schema["const"]}]
    values, types = schema.get("enum"), schema.get("type")
    if isinstance(values, list):
        return [{"const": value} for value in values]
    if isinstance(types, list):
        return [{**schema, "type": name} for name in types]
    return [schema]


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
    inner = pattern.removeprefix("^").removesuffix("$")
    if len(pattern) - len(inner) == 2 and "|" not in inner:
        return inner
    return f"(?s:.*)(?:{pattern})(?s:.*)"


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
