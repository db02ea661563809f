"""Checks of structured output in Chat Completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ..dialects import CHAT
from ..parsed_response import fold_chat, read_chat
from ..rules.json_values import JsonObject, require
from ..session import Session
from .chat import AREA, PATH, request_chat
from .sample_schemas import PERSON, check_schema


def build_schema(schema: JsonObject, name: str = "answer") -> JsonObject:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def add_schemas() -> None:
    def wrap(value: JsonObject) -> JsonObject:
        return {
            "type": "object",
            "properties": {"a": value},
            "required": ["a"],
            "additionalProperties": False,
        }

    schemas: tuple[tuple[str, str, JsonObject], ...] = (
        ("object", "`properties` and `required`", PERSON),
        ("enum", "`enum`", wrap({"enum": ["north", "south"]})),
        ("boolean", "`type: boolean`", wrap({"type": "boolean"})),
        ("const", "`const`", wrap({"const": "fixed text"})),
        ("any-of", "`anyOf`", wrap({"anyOf": [{"type": "boolean"}, {"enum": ["x"]}]})),
        (
            "ref",
            "`$ref` to `$defs`",
            {**wrap({"$ref": "#/$defs/c"}), "$defs": {"c": {"enum": ["red", "green"]}}},
        ),
        (
            "array",
            "`minItems` and `maxItems`",
            wrap({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}),
        ),
        (
            "range",
            "`minimum` and `maximum`",
            wrap({"type": "integer", "minimum": 10, "maximum": 20}),
        ),
        ("pattern", "pattern", wrap({"type": "string", "pattern": "^[A-C]{2}-[0-9]$"})),
    )

    def build(schema: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = CHAT.build_request(
                s.model, "Give me an example.", 200, response_format=build_schema(schema)
            )
            answer = read_chat(await request_chat(s, body, "json_schema"))
            if answer.reason != "length":
                check_schema(answer.text, schema)

        return run

    for name, keywords, schema in schemas:
        AREA.add(
            f"schema-{name}",
            f"A strict JSON Schema with {keywords} is enforced or rejected.",
            build(schema),
        )


add_schemas()


@AREA.check("Streamed text matches a strict JSON Schema.")
async def schema_of_stream(s: Session) -> None:
    body = CHAT.build_stream_request(
        s.model, "Describe a person.", 200, response_format=build_schema(PERSON)
    )
    answer = fold_chat((await s.request(PATH, body, feature="json_schema")).body)
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@AREA.check("`response_format: json_object` returns a JSON object.")
async def json_object(s: Session) -> None:
    body = CHAT.build_request(
        s.model, "Describe a person as JSON.", 200, response_format={"type": "json_object"}
    )
    answer = read_chat(await request_chat(s, body, "json_object"))
    if answer.reason != "length":
        check_schema(answer.text, {"type": "object"})


@AREA.check("JSON output that is truncated by the token limit has `finish_reason: length`.")
async def schema_cut(s: Session) -> None:
    body = CHAT.build_request(
        s.model, "Describe a person.", 3, response_format=build_schema(PERSON)
    )
    answer = read_chat(await request_chat(s, body, "json_schema"))
    require(
        answer.reason == "length",
        f"the finish reason is {answer.reason!r} after 3 tokens of JSON: {answer.text!r}",
    )
