"""Parses the fields that constrain an answer, of which at most one is allowed.

They are `response_format`, `structured_outputs` and `guided_*`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from ..core.errors import RequestError, Unsupported
from ..core.request import (
    AnyJsonObject,
    Constraint,
    ContextFreeGrammar,
    JsonSchema,
    Regex,
    StringChoices,
)
from .field_errors import check_one_of, invalid_value, missing_parameter
from .generation_fields import DecodingFields, GenerationFields, ResponseFormat, StructuredOutputs
from .request_body import read_json_object, read_json_value

# Maximum characters of a schema, regular expression or grammar, and maximum strings of
# a choice.
MAX_SCHEMA = 64 * 1024


MAX_REGEX = 4 * 1024


MAX_GRAMMAR = 64 * 1024


MAX_OPTIONS = 1_000


def read_constraint_fields(fields: GenerationFields) -> tuple[Constraint | None, str]:
    """Return the constraint, and the field that holds it. Raises RequestError."""
    constraints = read_structured_outputs(fields)
    if (
        fields.response_format is not None
        and (constraint := _read_response_format(fields.response_format)) is not None
    ):
        constraints.insert(0, ("response_format", constraint))
    return require_at_most_one(constraints)


def read_structured_outputs(fields: DecodingFields) -> list[tuple[str, Constraint]]:
    """Parse the constraints in vLLM's own fields, each with its field name. Raises
    RequestError.
    """
    outputs = fields.structured_outputs
    constraints = [] if outputs is None else _read_outputs(outputs, "structured_outputs.")
    if outputs is not None and not constraints and outputs.close_at_limit is None:
        # A misspelled member would otherwise produce an unconstrained answer without an
        # error.
        raise invalid_value(
            "structured_outputs", "expected one of json, regex, choice, grammar and json_object"
        )
    texts = (fields.guided_regex, fields.guided_choice, fields.guided_grammar)
    if texts == (None, None, None) and not bytes(fields.guided_json):
        return constraints
    guided_outputs = StructuredOutputs(
        json=fields.guided_json,
        regex=fields.guided_regex,
        choice=fields.guided_choice,
        grammar=fields.guided_grammar,
    )
    return [*constraints, *_read_outputs(guided_outputs, "guided_")]


def require_at_most_one(
    constraints: Sequence[tuple[str, Constraint]], path: str = ""
) -> tuple[Constraint | None, str]:
    """Return the constraint, and the field that holds it. Raises RequestError if there
    are several.

    path: prefix of the field's name.
    """
    if len(constraints) > 1:
        names = " and ".join(f"'{param}'" for param, _ in constraints)
        raise RequestError(
            f"Only one constraint is allowed, but got {names}.", param=constraints[1][0]
        )
    return (
        (constraints[0][1], path + constraints[0][0]) if constraints else (None, "response_format")
    )


def _read_response_format(format: ResponseFormat) -> Constraint | None:
    if format.type == "structural_tag":
        raise Unsupported(
            "'response_format' of type 'structural_tag' is not supported here.",
            param="response_format",
        )
    kind = check_one_of(format.type, ("text", "json_object", "json_schema"), "response_format.type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = read_schema(format.schema, "response_format.schema")
        return AnyJsonObject() if schema is None else JsonSchema(schema, strict=False)
    json_schema = format.json_schema
    if json_schema is None:
        raise missing_parameter("response_format.json_schema")
    schema = read_schema(json_schema.schema, "response_format.json_schema.schema")
    if schema is None:
        return AnyJsonObject()
    return JsonSchema(
        schema,
        strict=bool(json_schema.strict),
        name=json_schema.name,
        description=json_schema.description or None,
    )


def _read_outputs(outputs: StructuredOutputs, prefix: str) -> list[tuple[str, Constraint]]:
    constraints: list[tuple[str, Constraint]] = []
    if (schema := read_schema_or_text(outputs.json, prefix + "json")) is not None:
        constraints.append((prefix + "json", JsonSchema(schema)))
    if outputs.regex is not None:
        constraints.append(
            (prefix + "regex", Regex(check_text_size(outputs.regex, MAX_REGEX, prefix + "regex")))
        )
    if outputs.choice is not None:
        if not outputs.choice or len(outputs.choice) > MAX_OPTIONS or "" in outputs.choice:
            raise invalid_value(
                prefix + "choice", f"expected 1 to {MAX_OPTIONS} strings, none of them empty"
            )
        constraints.append((prefix + "choice", StringChoices(tuple(outputs.choice))))
    if outputs.grammar is not None:
        constraints.append(
            (
                prefix + "grammar",
                read_grammar(check_text_size(outputs.grammar, MAX_GRAMMAR, prefix + "grammar")),
            )
        )
    if outputs.json_object:
        constraints.append((prefix + "json_object", AnyJsonObject()))
    if read_json_value(outputs.structural_tag, prefix + "structural_tag") is not None:
        raise Unsupported(
            f"'{prefix}structural_tag' is not supported here.", param=prefix + "structural_tag"
        )
    return constraints


def read_grammar(definition: str) -> ContextFreeGrammar:
    """Build the grammar and detect its syntax, since vLLM's clients send both in one
    field: only GBNF has `::=`.
    """
    return ContextFreeGrammar(definition, "gbnf" if "::=" in definition else "lark")


def read_schema(raw: Raw, param: str) -> str | None:
    """Return a JSON Schema as JSON text; None if absent or null. Raises RequestError."""
    text = read_json_object(raw, param)
    return None if text is None else check_text_size(text, MAX_SCHEMA, param)


def read_schema_or_text(raw: Raw, param: str) -> str | None:
    """Return a JSON Schema sent as an object or as a string of JSON, as in vLLM and
    SGLang. Raises RequestError.
    """
    value = read_json_value(raw, param)
    if not isinstance(value, str):
        return read_schema(raw, param)
    try:
        return read_schema(Raw(value.encode()), param)
    except RequestError:
        raise invalid_value(
            param, "expected a JSON Schema, as an object or as a string that holds one"
        ) from None


def check_text_size(text: str, max_size: int, param: str) -> str:
    if len(text) > max_size:
        raise invalid_value(param, f"expected at most {max_size} characters, got {len(text)}")
    if not text:
        raise invalid_value(param, "it must not be empty")
    return text
