"""Closes object schemas to members that they do not name. Pure.

An open schema allows any member, and models invent them: arguments that the tool does not take, objects that do not
end. Whatever matches the closed schema matches the open one; vLLM's and llama.cpp's grammars close schemas too. A
schema opts out with `"additionalProperties": true`.
"""

from __future__ import annotations

from .schema import Json, Schema, combines_schemas, iterate_parts

_LIST_KEYWORDS = ("anyOf", "allOf", "prefixItems")
_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE_KEYWORDS = ("items", "additionalProperties", "additionalItems")
_EXTENSION_KEYWORDS = frozenset(
    [
        *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
        *("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas", "dependencies"),
    ]
)


def close_schema(schema: Schema) -> Schema:
    """Close all objects with `properties`, be it none, that do not set `additionalProperties`.

    Schemas combined by `allOf` or `oneOf` stay open: closing one of them would forbid members of the other, or match
    what the other matches too.
    """
    if isinstance(schema, bool):
        return schema
    parts = (part for part in iterate_parts(schema) if isinstance(part, dict))
    if any("oneOf" in part or combines_schemas(part) for part in parts):
        return schema
    return _close_node(schema)


def _close_node(schema: dict[str, Json]) -> dict[str, Json]:
    closed = {keyword: _close_keyword(keyword, value) for keyword, value in schema.items()}
    return {**closed, "additionalProperties": False} if _is_closable(schema) else closed


def _close_keyword(keyword: str, value: Json) -> Json:
    if keyword in _MAP_KEYWORDS and isinstance(value, dict):
        return {name: _close_part(subschema) for name, subschema in value.items()}
    if keyword in _LIST_KEYWORDS and isinstance(value, list):
        return [_close_part(subschema) for subschema in value]
    return _close_part(value) if keyword in _SINGLE_KEYWORDS else value


def _close_part(value: Json) -> Json:
    return _close_node(value) if isinstance(value, dict) else value


def _is_closable(schema: dict[str, Json]) -> bool:
    properties, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    return not schema.keys() & _EXTENSION_KEYWORDS and all(name in properties for name in required)
