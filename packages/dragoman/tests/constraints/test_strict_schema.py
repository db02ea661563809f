"""Closed schemas: no undeclared members are generated, and every answer is valid under
the original schema.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from tests.constraints.conftest import EOS
from tests.constraints.walks import accepts

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.response_grammar import close_schema, compose_grammar
from dragoman.core.request import JsonSchema
from dragoman.prompts.hf_tokenizer import HfTokenizer

Schema = dict[str, Any]

PERSON: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
INTEGER: Schema = {"type": "integer"}
A: Schema = {"properties": {"a": INTEGER}, "required": ["a"]}
B: Schema = {"properties": {"b": INTEGER}}

CLOSED: dict[str, tuple[Schema, Any, Any]] = {
    "itself": (PERSON, {"name": "x"}, {"name": "x", "n": 1}),
    "in a property": (
        {"properties": {"p": PERSON}},
        {"p": {"name": "x"}},
        {"p": {"name": "x", "n": 1}},
    ),
    "in an array": ({"type": "array", "items": PERSON}, [{"name": "x"}], [{"name": "x", "n": 1}]),
    "in a definition": (
        {"$defs": {"p": PERSON}, "properties": {"p": {"$ref": "#/$defs/p", "description": "who"}}},
        {"p": {"name": "x"}},
        {"p": {"name": "x", "n": 1}},
    ),
    "one of several kinds": (
        {"anyOf": [PERSON, {"type": "null"}]},
        {"name": "x"},
        {"name": "x", "n": 1},
    ),
    "in what others hold": (
        {"type": "object", "additionalProperties": PERSON},
        {"any": {"name": "x"}},
        {"any": {"name": "x", "n": 1}},
    ),
}
OPEN: dict[str, tuple[Schema, Any]] = {
    "it says so": ({**PERSON, "additionalProperties": True}, {"name": "x", "n": 1}),
    "of a kind": ({**PERSON, "additionalProperties": INTEGER}, {"name": "x", "n": 1}),
    "by a pattern": ({**PERSON, "patternProperties": {"^m": INTEGER}}, {"name": "x", "m": 1}),
    "nothing is named": ({"type": "object"}, {"n": 1}),
    "what is required is not named": ({"properties": {"a": INTEGER}, "required": ["b"]}, {"b": 1}),
    "two have to hold": ({"allOf": [A, B]}, {"a": 1, "b": 2}),
    "beside a reference": ({"$defs": {"a": A}, "$ref": "#/$defs/a", **B}, {"a": 1, "b": 2}),
    "beside alternatives": ({**A, "anyOf": [B, {"type": "object"}]}, {"a": 1, "b": 2}),
    "within values": ({"const": {"properties": {"a": 1}}}, {"properties": {"a": 1}}),
}


def fits(schema: Schema, value: Any) -> bool:
    return jsonschema_rs.is_valid(schema, value)


@pytest.mark.parametrize("name", CLOSED)
def test_close_schema_excludes_undeclared_fields(name: str) -> None:
    schema, plain, more = CLOSED[name]
    assert fits(schema, plain)
    assert fits(schema, more)
    tight = close_schema(schema)
    assert isinstance(tight, dict)
    assert fits(tight, plain)
    assert not fits(tight, more)


@pytest.mark.parametrize("name", OPEN)
def test_close_schema_keeps_needed_extra_members(name: str) -> None:
    schema, value = OPEN[name]
    tight = close_schema(schema)
    assert isinstance(tight, dict)
    assert fits(schema, value)
    assert fits(tight, value)


def test_close_schema_leaves_one_of_open() -> None:
    """Closed, the first branch rejects the second's member; open, the second accepts
    the first's instances too.
    """
    schema: Schema = {"oneOf": [A, B]}
    assert not fits(schema, {"a": 1})
    assert close_schema(schema) == schema


@pytest.mark.parametrize("schema", [True, False])
def test_close_schema_returns_boolean_unchanged(schema: bool) -> None:
    assert close_schema(schema) is schema


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [('{"name": "x"}', True), ('{"name": "x", "n": 1}', False), ('{"n": 1, "name": "x"}', False)],
)
def test_json_schema_grammar_uses_closed_schema(
    answer: str, allowed: bool, embedded: HfTokenizer, compiler: Compiler
) -> None:
    grammar = compose_grammar(embedded.special_tokens, body=JsonSchema(json.dumps(PERSON), False))
    ids = embedded.encode(answer, special=False)
    assert accepts(compiler, grammar, ids, embedded.special_tokens[EOS]) is allowed
