"""The regular expressions of a JSON Schema, which some grammars cannot enforce."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from ..core.json_types import JsonObject, JsonValue
from .json_schema import DATA_KEYWORDS, SCHEMAS_BY_NAME, Schema

SchemaVisitor = Callable[[JsonObject, str], JsonObject]
"""Maps a schema, whose subschemas are mapped already, at a JSON path."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_PATH = 128
"""Maximum characters of a path that a warning quotes."""
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
        kept = {name: value for name, value in named.items() if name not in patterns}
        removed = [value for name, value in named.items() if name in patterns]
        # A name that matched may now be any additional one, whose value must then be
        # allowed too.
        others = part.get("additionalProperties", True)
        opened: JsonValue = True
        if others is False:
            opened = removed[0] if len(removed) == 1 else {"anyOf": removed}
        elif others is not True:
            opened = {"anyOf": [others, *removed]}
        return {**part, "patternProperties": kept, "additionalProperties": opened}

    mapped = map_schemas(schema, visit)
    assert isinstance(mapped, dict | bool)
    return mapped


def describe_rejection(place: str, message: str) -> str:
    """Describe a pattern that is not enforced.

    place: its JSON path.
    message: the error of the grammar that contained it.
    """
    place = place if len(place) <= _MAX_PATH else place[:_MAX_PATH] + "..."
    reason = next((text for words, text in _REASONS if re.search(words, message)), None)
    what = "it cannot be compiled" if reason is None else f"it has {reason}"
    return f"`pattern` at {place} is left out: {what}"
