"""Converts text that a model wrote to JSON values, typed by a tool's JSON Schema. Knows no model's syntax."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import cast

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

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
"""Names of types in tools' schemas that are not JSON Schema's; the same as in vLLM 0.33."""


def decode(text: str) -> Json:
    """Decode strict JSON; raises ValueError also for excessive nesting."""
    try:
        return cast("Json", json.loads(text, parse_constant=_reject_constant))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _reject_constant(name: str) -> Json:
    raise ValueError(f"{name} is not valid JSON")


def encode(value: Json) -> str:
    """Encode as JSON; a lone surrogate, which UTF-8 cannot encode, stays an escape."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return text


def find_schema_types(schema: Json, root: Json = None) -> tuple[str, ...]:
    """The JSON types that a property's schema allows, in order and unique; empty where it does not restrict them.

    root: the schema in which references are resolved. Each is followed once: a schema may refer to itself.
    """
    return tuple(dict.fromkeys(_find_types(schema, root, set())))


def _find_types(schema: Json, root: Json, visited: set[str]) -> list[str]:
    if not isinstance(schema, dict):
        return []
    types = [_ALIASES.get(name.lower(), name) for name in _wrap_in_list(schema.get("type")) if isinstance(name, str)]
    for union in ("anyOf", "oneOf"):
        for option in _as_list(schema.get(union)):
            types.extend(_find_types(option, root, visited))
    if not types:
        types.extend(_infer_types(schema, root, visited))
    return [*types, "null"] if types and schema.get("nullable") else types


def _infer_types(schema: dict[str, Json], root: Json, visited: set[str]) -> list[str]:
    """The types, where the schema has no `type`."""
    if "const" in schema:
        return [_find_type(schema["const"])]
    if "enum" in schema:
        return [_find_type(value) for value in _as_list(schema["enum"])]
    reference = schema.get("$ref")
    # References may be circular (a tree's node refers to itself).
    if isinstance(reference, str) and reference not in visited:
        visited.add(reference)
        return _find_types(resolve(reference, root), root, visited)
    # All parts have to match, so the first that names a type decides.
    part_types = [_find_types(part, root, visited) for part in _as_list(schema.get("allOf"))]
    if any(part_types):
        return next(filter(None, part_types))
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def resolve(reference: str, root: Json) -> Json:
    """Resolve a local reference (`#/$defs/Name`); None if it is missing."""
    target = root
    if not reference.startswith("#"):
        return None
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _find_type(value: Json) -> str:
    return _TYPES[type(value)]


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _wrap_in_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def coerce(raw: str, types: Sequence[str]) -> Json:
    """Convert the text to the first of these types that fits; unchanged if none fits."""
    for type_name in types:
        try:
            return _convert(raw, type_name)
        except (ValueError, OverflowError):
            continue
    return raw


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")


def match_number(raw: str, types: Sequence[str]) -> str | None:
    """The text unchanged, where it is a JSON number of one of these types: this preserves its digits."""
    stripped = raw.strip()
    match = _NUMBER.fullmatch(stripped)
    if match is None:
        return None
    is_integer = match["fraction"] is None and match["power"] is None
    return stripped if "number" in types or (is_integer and "integer" in types) else None


def guess(raw: str) -> Json:
    """The value of a text of unknown type: JSON if it is valid, else the text itself."""
    try:
        return decode(raw)
    except ValueError:
        return raw


def _convert(raw: str, type_name: str) -> Json:
    stripped = raw.strip()
    match type_name:
        case "integer":
            number = float(stripped)
            if number.is_integer():
                return int(stripped) if stripped.lstrip("+-").isdecimal() else int(number)
        case "number":
            number = float(stripped)
            if number - number == 0:  # Neither infinite nor NaN.
                return int(number) if number.is_integer() and "." not in stripped else number
        case "boolean" if stripped.lower() in ("true", "1", "false", "0"):
            return stripped.lower() in ("true", "1")
        case "null" if stripped in ("null", "None"):
            return None
        case "object" | "array":
            value = decode(raw)
            if isinstance(value, dict if type_name == "object" else list):
                return value
        case _:
            pass
    raise ValueError(f"no {type_name}")
