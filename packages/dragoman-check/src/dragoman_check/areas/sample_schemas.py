"""A JSON Schema that checks request, and validation of output against a schema."""

from __future__ import annotations

import json

import jsonschema_rs

from ..rules.json_values import JsonObject, Violation


def check_schema(text: str, schema: JsonObject) -> None:
    try:
        jsonschema_rs.validate(schema, json.loads(text))
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise Violation(f"{text[:200]!r} does not match its schema: {str(error)[:200]}") from None


PERSON: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "colours": {
            "type": "array",
            "items": {"enum": ["red", "blue"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}
