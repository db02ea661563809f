"""Grammar pieces of single arguments in enforced calls, by type. Knows no model's syntax."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import Unsupported
from ..core.syntax import Alternation, FreeText, OptionalPieces, SyntaxPiece
from .json_values import Json, encode, resolve

Schema = dict[str, Json]

MAX_ARGUMENTS = 128
MAX_COPIED_CHARS = 512 * 1024
"""Maximum characters of definitions, over all arguments that include a copy."""
_ASSERTIONS = frozenset(
    [
        *(
            "type",
            "format",
            "pattern",
            "minLength",
            "maxLength",
            "enum",
            "const",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "if",
        ),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "items", "minItems", "maxItems"),
        *("properties", "required", "additionalProperties", "$ref"),
    ]
)


def expand_alternatives(schema: Schema) -> list[Schema]:
    """Expand the schema into several of one type each, complete in themselves: a value of one of them matches it."""
    return _expand_alternatives(schema, set())


def _expand_alternatives(schema: Schema, visited: set[str]) -> list[Schema]:
    """visited: references already followed; their targets are among the alternatives."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in visited:
            return []
        visited.add(reference)
    options = _find_options(schema)
    if options:
        defs: Schema = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return [part for option in options for part in _expand_alternatives({**defs, **option}, visited)]
    if "const" in schema:
        return [{"const": schema["const"]}]
    values, types = schema.get("enum"), schema.get("type")
    if isinstance(values, list):
        return [{"const": value} for value in values]
    if isinstance(types, list):
        return [{**schema, "type": name} for name in types]
    return [schema]


def check_size(schemas: Sequence[Schema], defs: Schema) -> None:
    """Raise Unsupported where a copy of the definitions per argument would be too large."""
    if len(schemas) > MAX_ARGUMENTS:
        raise Unsupported(f"More than {MAX_ARGUMENTS} arguments cannot be enforced in this model's tool call format.")
    copies = sum("const" not in alternative for schema in schemas for alternative in expand_alternatives(schema))
    if copies * len(encode(defs)) > MAX_COPIED_CHARS:
        raise Unsupported("The tool definitions are too large to be enforced in this model's tool call format.")


def _find_options(schema: Schema) -> list[Schema]:
    """The alternatives, where the schema only lists them."""
    for union in ("anyOf", "oneOf"):
        options = _filter_objects(schema.get(union))
        if options:
            return options
    reference, parts = schema.get("$ref"), _filter_objects(schema.get("allOf"))
    if isinstance(reference, str) and isinstance(target := resolve(reference, schema), dict):
        return [target]
    return parts if len(parts) == 1 and "type" not in schema else []


def _filter_objects(value: Json) -> list[Schema]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def build_free_text(schema: Schema, end: str, avoid: tuple[str, ...] = ()) -> FreeText:
    """A string that matches this schema; its `format` cannot be enforced."""
    pattern, min_length, max_length = schema.get("pattern"), schema.get("minLength"), schema.get("maxLength")
    return FreeText(
        end,
        avoid,
        _anchor_pattern(pattern) if isinstance(pattern, str) else None,
        min_length if isinstance(min_length, int) else 0,
        max_length if isinstance(max_length, int) else None,
        list_unenforced(schema, "type", "pattern", "minLength", "maxLength"),
    )


def list_unenforced(schema: Schema, *enforced: str) -> tuple[str, ...]:
    """The keywords that restrict a text and are not among the enforced ones."""
    return tuple(sorted(schema.keys() & _ASSERTIONS - set(enforced)))


def _anchor_pattern(pattern: str) -> str:
    """Anchor the pattern: a schema's pattern may match part of the string, this one matches all of it."""
    top_level = _find_top_level_chars(pattern)
    if top_level.get(0) == "^" and top_level.get(len(pattern) - 1) == "$" and "|" not in top_level.values():
        return pattern[1:-1]
    return f"(?s:.*)(?:{pattern})(?s:.*)"


def _find_top_level_chars(pattern: str) -> dict[int, str]:
    """The unescaped characters outside groups and classes, by position."""
    top_level: dict[int, str] = {}
    depth, escaped, inside = 0, False, False
    for index, char in enumerate(pattern):
        if escaped or char == "\\":
            escaped = not escaped
        elif inside or char == "[":
            inside = char != "]"
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif depth == 0:
            top_level[index] = char
    return top_level


def check_free_of_markers(text: str, markers: Sequence[str]) -> str:
    """Return the text if it contains none of these markers. Raises Unsupported."""
    forbidden = next((marker for marker in markers if marker in text), None)
    if forbidden is not None:
        raise Unsupported(
            f"{text[:100]!r} cannot be represented in this model's tool call format: it contains {forbidden!r}."
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
    first = tuple(
        (*pieces, *(OptionalPieces((comma, *following)) for following in optional_arguments[index + 1 :]))
        for index, pieces in enumerate(optional_arguments)
    )
    return (OptionalPieces((Alternation(first),)),) if first else ()
