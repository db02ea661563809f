"""JSON values out of what a model wrote, typed by a tool's JSON Schema. Knows no syntax of any model."""

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
"""Names of types that tools' schemas have although JSON Schema has not; those of vLLM 0.33."""


def decode(text: str) -> Json:
    """JSON, strictly; raises ValueError also for nesting that is too deep."""
    try:
        return cast("Json", json.loads(text, parse_constant=_no_constant))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not valid JSON")


def encode(value: Json) -> str:
    """JSON text; half a surrogate pair, which no encoding can carry, stays an escape."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return text


def schema_types(schema: Json, root: Json = None) -> tuple[str, ...]:
    """The JSON types that a property's schema names, in its order and each once; none where it leaves them open.

    root: the schema in which references are looked up. Each is followed once: a schema may refer to itself.
    """
    return tuple(dict.fromkeys(_types(schema, root, set())))


def _types(schema: Json, root: Json, seen: set[str]) -> list[str]:
    if not isinstance(schema, dict):
        return []
    types = [_ALIASES.get(one.lower(), one) for one in _listed(schema.get("type")) if isinstance(one, str)]
    for union in ("anyOf", "oneOf"):
        for option in _list(schema.get(union)):
            types.extend(_types(option, root, seen))
    if not types:
        types.extend(_implied(schema, root, seen))
    return [*types, "null"] if types and schema.get("nullable") else types


def _implied(schema: dict[str, Json], root: Json, seen: set[str]) -> list[str]:
    """The types where the schema does not name them itself."""
    if "const" in schema:
        return [_type_of(schema["const"])]
    if "enum" in schema:
        return [_type_of(value) for value in _list(schema["enum"])]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        return _types(resolve(reference, root), root, seen)
    of_parts = [_types(part, root, seen) for part in _list(schema.get("allOf"))]
    if any(of_parts):
        return next(filter(None, of_parts))
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def resolve(reference: str, root: Json) -> Json:
    """What a local reference (`#/$defs/Name`) names; None for what is not there."""
    found = root
    if not reference.startswith("#"):
        return None
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _type_of(value: Json) -> str:
    return _TYPES[type(value)]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]


def coerce(raw: str, types: Sequence[str]) -> Json:
    """The text as the first of these types that it can be; as it is if it can be none."""
    for name in types:
        try:
            return _as_type(raw, name)
        except (ValueError, OverflowError):
            continue
    return raw


_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")


def number(raw: str, types: Sequence[str]) -> str | None:
    """The text itself where it is a number of one of these types as JSON writes it: digits that it has are kept."""
    word = raw.strip()
    found = _NUMBER.fullmatch(word)
    if found is None:
        return None
    whole = found["fraction"] is None and found["power"] is None
    return word if "number" in types or (whole and "integer" in types) else None


def guess(raw: str) -> Json:
    """The value of a text whose type nobody has said: JSON if it is any, else the text itself."""
    try:
        return decode(raw)
    except ValueError:
        return raw


def _as_type(raw: str, name: str) -> Json:
    word = raw.strip()
    match name:
        case "integer":
            number = float(word)
            if number.is_integer():
                return int(word) if word.lstrip("+-").isdecimal() else int(number)
        case "number":
            number = float(word)
            if number - number == 0:  # neither infinite nor NaN
                return int(number) if number.is_integer() and "." not in word else number
        case "boolean" if word.lower() in ("true", "1", "false", "0"):
            return word.lower() in ("true", "1")
        case "null" if word in ("null", "None"):
            return None
        case "object" | "array":
            value = decode(raw)
            if isinstance(value, dict if name == "object" else list):
                return value
        case _:
            pass
    raise ValueError(f"no {name}")
