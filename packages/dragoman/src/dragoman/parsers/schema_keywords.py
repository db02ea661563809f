"""The keywords of JSON Schema, by what they restrict."""

from __future__ import annotations

LOWER_BOUNDS = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))


UPPER_BOUNDS = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))


ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$defs", "definitions", "discriminator", "$schema", "$id"),
    ]
)


ASSERTIONS = frozenset(
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
        *(
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
            "items",
            "minItems",
            "maxItems",
        ),
        *(
            "properties",
            "required",
            "additionalProperties",
            "$ref",
            "uniqueItems",
            "contains",
            "prefixItems",
        ),
    ]
)


TEXT_KEYWORDS = frozenset(("format", "pattern"))


LIST_KEYWORDS = frozenset(
    ("items", "minItems", "maxItems", "uniqueItems", "contains", "prefixItems")
)


OBJECT_KEYWORDS = frozenset(("properties", "required", "additionalProperties"))
