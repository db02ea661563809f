"""The regular expressions of a JSON Schema, which some grammars cannot enforce."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from ..core.errors import RequestError
from ..core.json_types import JsonObject, JsonValue
from ..core.rust_panics import convert_panics
from .date_formats import DATE_PATTERNS
from .ecma_regex import convert_ecma_regex
from .json_schema import DATA_KEYWORDS, SCHEMAS_BY_NAME, Schema

SchemaVisitor = Callable[[JsonObject, str], JsonObject]
"""Maps a schema, whose subschemas are mapped already, at a JSON path."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_PATH = 128
"""Maximum characters of a path that a warning quotes."""
_REGEX_KEYWORDS = frozenset({"pattern", "patternProperties", "format"})
_REASONS = (("look-?around", "look-around"), ("back-?reference", "back-references"))


def map_schemas(schema: JsonValue, visit: SchemaVisitor, path: str = "$") -> JsonValue:
    """Map all schemas within a schema, the innermost first."""
    if isinstance(schema, list):
        return [map_schemas(item, visit, f"{path}[{i}]") for i, item in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    mapped: JsonObject = {}
    for keyword, value in schema.items():
        inner_path = join_path(path, keyword)
        if keyword in DATA_KEYWORDS:
            mapped[keyword] = value
        elif keyword in SCHEMAS_BY_NAME and isinstance(value, dict):
            mapped[keyword] = {
                name: map_schemas(part, visit, join_path(inner_path, name))
                for name, part in value.items()
            }
        else:
            mapped[keyword] = map_schemas(value, visit, inner_path)
    return visit(mapped, path)


def join_path(path: str, name: str) -> str:
    """Append a member to a JSON path (RFC 9535)."""
    return f"{path}.{name}" if _PLAIN_NAME.fullmatch(name) else f"{path}[{name!r}]"


def find_patterns(schema: Schema) -> dict[str, list[str]]:
    """Find the regular expressions, each with the JSON paths of its places."""
    places: dict[str, list[str]] = {}

    def visit(part: JsonObject, path: str) -> JsonObject:
        if isinstance(pattern := part.get("pattern"), str):
            places.setdefault(pattern, []).append(f"{path}.pattern")
        if isinstance(named := part.get("patternProperties"), dict):
            for pattern in named:
                place = join_path(f"{path}.patternProperties", pattern)
                places.setdefault(pattern, []).append(place)
        return part

    map_schemas(schema, visit)
    return places


def is_regex(pattern: str) -> bool:
    """Whether a pattern is a regular expression of ECMA-262."""
    import jsonschema_rs  # noqa: PLC0415 (a schema is rare, and loading takes long)

    with convert_panics(lambda: RequestError("The regular expression cannot be read.")):
        return jsonschema_rs.is_valid({"format": "regex"}, pattern, validate_formats=True)


def remove_patterns(schema: Schema, patterns: Collection[str]) -> Schema:
    """Remove these regular expressions, so that the schema accepts what it accepted, and
    more.
    """

    def visit(part: JsonObject, path: str) -> JsonObject:
        del path
        if part.get("pattern") in patterns:
            part = {keyword: value for keyword, value in part.items() if keyword != "pattern"}
        named = part.get("patternProperties")
        if not isinstance(named, dict) or named.keys().isdisjoint(patterns):
            return part
        others = {name: value for name, value in named.items() if name not in patterns}
        removed = [value for name, value in named.items() if name in patterns]
        # A name that matched may now be any additional one, whose value must then be
        # allowed too.
        additional = part.get("additionalProperties", True)
        opened: JsonValue = True
        if additional is False:
            opened = removed[0] if len(removed) == 1 else {"anyOf": removed}
        elif additional is not True:
            opened = {"anyOf": [additional, *removed]}
        return {**part, "patternProperties": others, "additionalProperties": opened}

    mapped = map_schemas(schema, visit)
    assert isinstance(mapped, dict | bool)
    return mapped


def adapt_regexes(schema: Schema) -> Schema:
    """Write patterns in llguidance's syntax, and formats of dates as patterns."""
    mapped = map_schemas(schema, _adapt_part)
    assert isinstance(mapped, dict | bool)
    return mapped


def _adapt_part(part: JsonObject, path: str) -> JsonObject:
    del path
    if part.keys().isdisjoint(_REGEX_KEYWORDS):
        return part
    adapted = dict(part)
    if isinstance(pattern := part.get("pattern"), str):
        adapted["pattern"] = convert_ecma_regex(pattern)
    if isinstance(named := part.get("patternProperties"), dict):
        adapted["patternProperties"] = {
            convert_ecma_regex(name): value for name, value in named.items()
        }
    format = part.get("format")
    if isinstance(format, str) and (date_pattern := DATE_PATTERNS.get(format)) is not None:
        del adapted["format"]
        if "pattern" not in adapted:
            return {**adapted, "pattern": date_pattern}
        parts = adapted.get("allOf", [])
        assert isinstance(parts, list)
        adapted["allOf"] = [*parts, {"pattern": date_pattern}]
    return adapted


def describe_rejection(place: str, message: str) -> str:
    """Describe a pattern that is not enforced.

    place: its JSON path.
    message: the error of the grammar that contained it.
    """
    place = place if len(place) <= _MAX_PATH else place[:_MAX_PATH] + "..."
    reason = next((text for words, text in _REASONS if re.search(words, message)), None)
    what = "it cannot be compiled" if reason is None else f"it has {reason}"
    return f"`pattern` at {place} is left out: {what}"
