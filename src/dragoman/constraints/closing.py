"""Objects that an answer is to hold, without members that their schema does not name. Pure.

A schema that says nothing of further members allows any, and a model that may invent them does: arguments that the
tool does not take, objects that do not end. What fits the closed schema fits the open one, so nothing is lost; vLLM's
and llama.cpp's grammars do it as well. A schema that wants them says so: `"additionalProperties": true`.
"""

from __future__ import annotations

from .schema import Json, Schema, merges, parts

_LISTS = ("anyOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_SINGLE = ("items", "additionalProperties", "additionalItems")
_SAYS_OF_OTHERS = frozenset(
    [
        *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
        *("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas", "dependencies"),
    ]
)


def closed(schema: Schema) -> Schema:
    """The same schema, in which objects with named members have no others, wherever nothing says otherwise.

    Left as it is where several schemas have to hold for one object, or exactly one of several: closing one of them
    would forbid the members of the other, or let pass what the other allows as well.
    """
    if isinstance(schema, bool) or any(_relates(part) for part in parts(schema)):
        return schema
    return _node(schema)


def _relates(part: Json) -> bool:
    return isinstance(part, dict) and ("oneOf" in part or merges(part))


def _node(schema: dict[str, Json]) -> dict[str, Json]:
    made = {word: _within(word, value) for word, value in schema.items()}
    return {**made, "additionalProperties": False} if _is_closable(schema) else made


def _within(word: str, value: Json) -> Json:
    if word in _MAPS and isinstance(value, dict):
        return {name: _part(inner) for name, inner in value.items()}
    if word in _LISTS and isinstance(value, list):
        return [_part(inner) for inner in value]
    return _part(value) if word in _SINGLE else value


def _part(value: Json) -> Json:
    return _node(value) if isinstance(value, dict) else value


def _is_closable(schema: dict[str, Json]) -> bool:
    named, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(named, dict) or not named or not isinstance(required, list):
        return False
    return not schema.keys() & _SAYS_OF_OTHERS and all(name in named for name in required)
