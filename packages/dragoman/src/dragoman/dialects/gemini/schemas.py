"""Converts Google's OpenAPI schemas to JSON Schema."""

from __future__ import annotations

import re
from typing import cast

import msgspec
from msgspec import Raw

from ...core.errors import RequestError
from ..constraint_fields import read_schema
from ..request_body import read_json_value

_NUMBERS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
    | {"minimum", "maximum"}
)
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")
_SNAKE_NAMES = {
    "any_of": "anyOf",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
}
_TYPES = (None, "string", "number", "integer", "boolean", "array", "object", "null")
"""Google's types by their numbers, which its JSON may have instead; 0 is none."""
_WITHOUT_EFFECT = frozenset({"propertyOrdering", "property_ordering", "example", "nullable"})


def read_schema_field(
    openapi: Raw, json_schema: Raw, openapi_param: str, json_param: str
) -> str | None:
    """Return the schema of a pair of fields as JSON Schema; None without one.

    Raises:
        RequestError: both are set, or one is not a schema.
    """
    text = read_schema(json_schema, json_param)
    if read_schema(openapi, openapi_param) is None:
        return text
    if text is not None:
        raise RequestError(
            f"'{openapi_param}' and '{json_param}' cannot be combined; send one of them.",
            param=openapi_param,
            code="invalid_value",
        )
    schema = cast("dict[str, object]", read_json_value(openapi, openapi_param))
    return msgspec.json.encode(_convert(schema)).decode()


def _read_type(value: object) -> object:
    """Return a type of JSON Schema; None for Google's TYPE_UNSPECIFIED."""
    if isinstance(value, str):
        return None if value.upper() == "TYPE_UNSPECIFIED" else value.lower()
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(_TYPES):
        return _TYPES[value]
    return value


def _convert(schema: object) -> object:
    if not isinstance(schema, dict):
        return schema
    members = cast("dict[str, object]", schema)
    converted: dict[str, object] = {}
    for wire_name, value in members.items():
        name = _SNAKE_NAMES.get(wire_name, wire_name)
        if name in _WITHOUT_EFFECT:
            continue
        match name, value:
            case "type", _:
                type = _read_type(value)
                if type is not None:
                    converted[name] = type
            case "properties", dict():
                properties = cast("dict[str, object]", value)
                converted[name] = {key: _convert(item) for key, item in properties.items()}
            case "anyOf", list():
                converted[name] = [_convert(item) for item in cast("list[object]", value)]
            case (("items" | "additionalProperties"), dict()):
                converted[name] = _convert(cast("object", value))
            case "format", _:
                # `enum`, `int32` and others describe what `enum` and `type` say.
                if value not in ("enum", "int32", "int64", "float", "double"):
                    converted[name] = value
            case _, str() if name in _NUMBERS and _NUMBER.fullmatch(value):
                # 64-bit integers are strings in Google's JSON.
                converted[name] = int(value) if value.isdecimal() else float(value)
            case _:
                converted[name] = value
    return _allow_null(converted) if members.get("nullable") is True else converted


def _allow_null(schema: dict[str, object]) -> dict[str, object]:
    kind = schema.get("type")
    if not isinstance(kind, str) or kind == "null":
        return {"anyOf": [schema, {"type": "null"}]}
    with_null = {**schema, "type": [kind, "null"]}
    values = schema.get("enum")
    if isinstance(values, list):
        with_null["enum"] = [*cast("list[object]", values), None]
    return with_null
