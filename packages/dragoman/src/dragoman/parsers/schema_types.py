"""Finds the JSON types that a schema allows."""

from __future__ import annotations

from types import MappingProxyType

from ..core.json_types import JsonObject, JsonValue

_TYPES = MappingProxyType(
    {
        **{type(None): "null", bool: "boolean", int: "integer", float: "number"},
        **{str: "string", list: "array", dict: "object"},
    }
)


_ALIASES = MappingProxyType(
    {
        **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
        **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64"), "integer"),
        **dict.fromkeys(("long", "short", "unsigned"), "integer"),
        **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
        **dict.fromkeys(("list", "arr", "sequence"), "array"),
        "bool": "boolean",
        "dict": "object",
    }
)
"""Type names that occur in tools' schemas but are not defined by JSON Schema; the same
as in vLLM 0.33.
"""


def find_schema_types(schema: JsonValue, root: JsonValue = None) -> tuple[str, ...]:
    """Return the JSON types that a property's schema allows, in order and unique; () if
    it does not restrict them.

    root: the schema in which references are resolved. Each is followed once, as a
        schema may refer to itself.
    """
    try:
        return tuple(dict.fromkeys(_find_types(schema, root, set())))
    except RecursionError:
        # A chain of hundreds of references.
        return ()


def _find_types(schema: JsonValue, root: JsonValue, visited: set[str]) -> list[str]:
    if not isinstance(schema, dict):
        return []
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    # As in vLLM, the case of a type name does not matter.
    types = [
        _ALIASES.get(name, name)
        for name in [name.lower() for name in names if isinstance(name, str)]
    ]
    for union in ("anyOf", "oneOf"):
        for option in _as_list(schema.get(union)):
            types.extend(_find_types(option, root, visited))
    if not types:
        types.extend(_infer_types(schema, root, visited))
    return [*types, "null"] if types and schema.get("nullable") else types


def _infer_types(schema: JsonObject, root: JsonValue, visited: set[str]) -> list[str]:
    """Infer the types of a schema without `type`."""
    if "const" in schema:
        return [_find_type(schema["const"])]
    if "enum" in schema:
        return [_find_type(value) for value in _as_list(schema["enum"])]
    reference = schema.get("$ref")
    # References may be circular (a tree's node refers to itself).
    if isinstance(reference, str) and reference not in visited:
        visited.add(reference)
        return _find_types(resolve(reference, root), root, visited)
    # All parts have to match, so the first part that names a type decides.
    part_types = [_find_types(part, root, visited) for part in _as_list(schema.get("allOf"))]
    if any(part_types):
        return next(filter(None, part_types))
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def resolve(reference: str, root: JsonValue) -> JsonValue:
    """Resolve a local reference (`#/$defs/Name`); return None if its target does not
    exist or is not local.
    """
    target = root
    # Other fragments than `#` and a JSON pointer are names of anchors.
    if reference != "#" and not reference.startswith("#/"):
        return None
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _find_type(value: JsonValue) -> str:
    return _TYPES[type(value)]


def _as_list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
