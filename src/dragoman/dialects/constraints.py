"""The forms in which a client binds an answer: `response_format`, `structured_outputs`, `guided_*`; at most one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from ..core.errors import RequestError, Unsupported
from ..core.request import Choices, Constraint, ContextFree, JsonObject, JsonSchema, Regex
from .body import invalid, json_text, json_value, one_of
from .fields import Decoding, Generation, JsonSchemaFormat, ResponseFormat, StructuredOutputs

MAX_SCHEMA = 64 * 1024
MAX_REGEX = 4 * 1024
MAX_GRAMMAR = 64 * 1024
MAX_OPTIONS = 1_000


def read_constraint(fields: Generation) -> Constraint | None:
    return only_one([*_of_response_format(fields.response_format), *structured(fields)])


def structured(fields: Decoding) -> list[tuple[str, Constraint]]:
    """What vLLM's own fields say, each with the field's name."""
    guided = StructuredOutputs(
        json=fields.guided_json,
        regex=fields.guided_regex,
        choice=fields.guided_choice,
        grammar=fields.guided_grammar,
    )
    given = fields.structured_outputs
    found = [] if given is None else _of_structured(given, "structured_outputs.")
    if given is not None and not found:
        # Who misspells the one member that counts would get an answer that nothing binds.
        raise invalid("structured_outputs", "expected one of json, regex, choice, grammar and json_object")
    return [*found, *_of_structured(guided, "guided_")]


def only_one(found: Sequence[tuple[str, Constraint]]) -> Constraint | None:
    if len(found) > 1:
        names = " and ".join(f"'{param}'" for param, _ in found)
        raise RequestError(f"Only one constraint is allowed, but got {names}.", param=found[1][0])
    return found[0][1] if found else None


def _of_response_format(format: ResponseFormat | None) -> list[tuple[str, Constraint]]:
    if format is None:
        return []
    if format.type == "structural_tag":
        raise Unsupported("'response_format' of type 'structural_tag' is not supported here.", param="response_format")
    match one_of(format.type, ("text", "json_object", "json_schema"), "response_format.type"):
        case "json_object":
            schema = schema_text(format.schema, "response_format.schema")
            return [("response_format", JsonObject() if schema is None else JsonSchema(schema, strict=False))]
        case "json_schema":
            return [("response_format", _json_schema(format.json_schema))]
        case _:
            return []


def _json_schema(format: JsonSchemaFormat | None) -> Constraint:
    if format is None:
        raise RequestError(
            "Missing required parameter: 'response_format.json_schema'.",
            param="response_format.json_schema",
            code="missing_required_parameter",
        )
    schema = schema_text(format.schema, "response_format.json_schema.schema")
    if schema is None:
        return JsonObject()
    return JsonSchema(schema, strict=bool(format.strict), name=format.name)


def _of_structured(given: StructuredOutputs, prefix: str) -> list[tuple[str, Constraint]]:
    found: list[tuple[str, Constraint]] = []
    if (schema := schema_or_text(given.json, prefix + "json")) is not None:
        found.append((prefix + "json", JsonSchema(schema)))
    if given.regex is not None:
        found.append((prefix + "regex", Regex(sized(given.regex, MAX_REGEX, prefix + "regex"))))
    if given.choice is not None:
        found.append((prefix + "choice", _choices(given.choice, prefix + "choice")))
    if given.grammar is not None:
        found.append((prefix + "grammar", grammar(sized(given.grammar, MAX_GRAMMAR, prefix + "grammar"))))
    if given.json_object:
        found.append((prefix + "json_object", JsonObject()))
    if json_value(given.structural_tag, prefix + "structural_tag") is not None:
        raise Unsupported(f"'{prefix}structural_tag' is not supported here.", param=prefix + "structural_tag")
    return found


def _choices(options: list[str], param: str) -> Choices:
    if not options or len(options) > MAX_OPTIONS or "" in options:
        raise invalid(param, f"expected 1 to {MAX_OPTIONS} strings, none of them empty")
    return Choices(tuple(options))


def grammar(definition: str) -> ContextFree:
    """GBNF writes `::=`, Lark does not; the clients of vLLM send both in one field."""
    return ContextFree(definition, "gbnf" if "::=" in definition else "lark")


def schema_text(raw: Raw, param: str) -> str | None:
    """A JSON Schema as JSON text; None where it is absent or null."""
    text = json_text(raw, param)
    return None if text is None else sized(text, MAX_SCHEMA, param)


def schema_or_text(raw: Raw, param: str) -> str | None:
    """vLLM and SGLang take a schema as an object or as a string of JSON."""
    value = json_value(raw, param)
    if not isinstance(value, str):
        return schema_text(raw, param)
    try:
        return schema_text(Raw(value.encode()), param)
    except RequestError:
        raise invalid(param, "expected a JSON Schema, as an object or as a string that holds one") from None


def sized(text: str, most: int, param: str) -> str:
    if len(text) > most:
        raise invalid(param, f"expected at most {most} characters, got {len(text)}")
    if not text:
        raise invalid(param, "it must not be empty")
    return text
