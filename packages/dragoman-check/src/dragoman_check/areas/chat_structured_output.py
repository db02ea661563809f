"""Checks of structured output in Chat Completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..client_answer import fold_chat, read_chat
from ..dialects import CHAT
from ..rules.json_values import require
from ..session import Json, Session
from .chat import AREA, PATH, ask_chat
from .sample_schemas import PERSON, check_schema


def build_schema(schema: Json, name: str = "answer") -> Json:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def add_schemas() -> None:
    def wrap(value: Json) -> Json:
        return {
            "type": "object",
            "properties": {"a": value},
            "required": ["a"],
            "additionalProperties": False,
        }

    schemas: tuple[tuple[str, str, Json], ...] = (
        ("object", "objects with required fields", PERSON),
        ("enum", "enum", wrap({"enum": ["north", "south"]})),
        ("boolean", "booleans", wrap({"type": "boolean"})),
        ("const", "const", wrap({"const": "fixed text"})),
        ("any-of", "anyOf", wrap({"anyOf": [{"type": "boolean"}, {"enum": ["x"]}]})),
        (
            "ref",
            "$ref to $defs",
            {**wrap({"$ref": "#/$defs/c"}), "$defs": {"c": {"enum": ["red", "green"]}}},
        ),
        (
            "array",
            "arrays with minItems and maxItems",
            wrap({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}),
        ),
        ("range", "minimum and maximum", wrap({"type": "integer", "minimum": 10, "maximum": 20})),
        ("pattern", "pattern", wrap({"type": "string", "pattern": "^[A-C]{2}-[0-9]$"})),
    )

    def build(schema: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = CHAT.ask(
                s.model, "Give me an example.", 200, response_format=build_schema(schema)
            )
            answer = read_chat(await ask_chat(s, body, "json_schema"))
            if answer.reason != "length":
                check_schema(answer.text, schema)

        return run

    for name, keywords, schema in schemas:
        AREA.add(
            f"schema-{name}",
            f"A strict JSON Schema with {keywords} is enforced, or rejected.",
            build(schema),
        )


add_schemas()


@AREA.check("A stream under a JSON Schema is the whole answer, and matches the schema.")
async def schema_of_stream(s: Session) -> None:
    body = CHAT.ask_stream(s.model, "Describe a person.", 200, response_format=build_schema(PERSON))
    answer = fold_chat((await s.ask(PATH, body, feature="json_schema")).body)
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@AREA.check("`json_object` is answered with a JSON object.")
async def json_object(s: Session) -> None:
    body = CHAT.ask(
        s.model, "Describe a person as JSON.", 200, response_format={"type": "json_object"}
    )
    answer = read_chat(await ask_chat(s, body, "json_object"))
    if answer.reason != "length":
        check_schema(answer.text, {"type": "object"})


@AREA.check("A JSON text that the limit cuts off ends with `length`, not with `stop`.")
async def schema_cut(s: Session) -> None:
    body = CHAT.ask(s.model, "Describe a person.", 3, response_format=build_schema(PERSON))
    answer = read_chat(await ask_chat(s, body, "json_schema"))
    require(
        answer.reason == "length", f"3 tokens of JSON end with {answer.reason!r}: {answer.text!r}"
    )
