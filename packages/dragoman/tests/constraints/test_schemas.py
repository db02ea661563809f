"""Every output that the masks of a schema allow is an instance of it; keywords that
cannot be enforced are rejected.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from tests.constraints.conftest import EOS
from tests.constraints.walks import accepts, list_allowed, text, walk

from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.json_schema import parse_schema
from dragoman.constraints.response_grammar import (
    CallForm,
    ConstraintGrammar,
    ToolCallRules,
    compose_grammar,
)
from dragoman.core.errors import RequestError
from dragoman.core.request import AnyJsonObject, JsonSchema
from dragoman.core.syntax import JsonPiece, LiteralText
from dragoman.prompts.hf_tokenizer import HfTokenizer

Schema = dict[str, Any]


def close(**properties: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
    "required": ["v"],
}
SUPPORTED: dict[str, Schema] = {
    "enum of everything": {"enum": ["a", "b c", 1, -2.5, None, True, {"x": [1]}, [], 'q"\\']},
    "const": close(c={"const": {"a": [1, "x"]}}),
    "recursion": {
        "$defs": {"node": {**NODE, "additionalProperties": False}},
        "$ref": "#/$defs/node",
    },
    "definitions": {
        "definitions": {"n": {"type": "integer"}},
        **close(a={"$ref": "#/definitions/n"}),
    },
    "recursion to the root": {
        "type": "object",
        "properties": {"a": {"$ref": "#"}},
        "additionalProperties": False,
    },
    "anyOf": {"anyOf": [{"type": "integer"}, close(s={"type": "string"}), {"type": "null"}]},
    "oneOf of disjoint": {
        "oneOf": [close(k={"const": "a"}, n={"type": "integer"}), close(k={"const": "b"})]
    },
    "allOf": {
        "allOf": [
            close(a={"type": "integer"}),
            {"properties": {"a": {"minimum": 3, "maximum": 30}}},
        ]
    },
    "type list": close(a={"type": ["string", "null", "integer"]}),
    "items": {"type": "array", "items": {"type": "boolean"}},
    "prefixItems": {
        "type": "array",
        "prefixItems": [{"type": "string"}, {"type": "integer"}],
        "items": False,
    },
    "minItems and maxItems": {
        "type": "array",
        "items": {"enum": ["x", "y"]},
        "minItems": 2,
        "maxItems": 4,
    },
    "uuid": close(u={"type": "string", "format": "uuid"}),
    "addresses": close(
        a={"type": "string", "format": "ipv4"}, b={"type": "string", "format": "ipv6"}
    ),
    "pattern": close(p={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"}),
    "lengths": close(s={"type": "string", "minLength": 2, "maxLength": 5}),
    "integer bounds": close(n={"type": "integer", "minimum": -7, "exclusiveMaximum": 112}),
    "number bounds": close(n={"type": "number", "exclusiveMinimum": 0.5, "maximum": 3}),
    "multipleOf": close(n={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    "optional properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "required without properties": {
        "type": "object",
        "required": ["a", "b"],
        "additionalProperties": {"type": "null"},
    },
    "additionalProperties": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "maxProperties": 3,
    },
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x_[a-z]+$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "strange names": close(
        **{'a"b\\': {"type": "integer"}, "é\n": {"type": "integer"}, "": {"type": "null"}}
    ),
    "boolean schemas": {"type": "object", "properties": {"a": True, "b": False}, "required": ["a"]},
    "annotations": {
        "title": "T",
        "description": "d",
        "$comment": "c",
        "default": 1,
        "examples": [1],
        "type": "integer",
    },
    "its own options for llguidance": {
        "x-guidance": {"whitespace_flexible": True},
        **close(a={"type": "integer"}),
    },
}
REFUSED: dict[str, tuple[Schema, str]] = {
    "not": ({"not": {"type": "string"}}, "not"),
    "if": ({"if": {"type": "string"}, "then": {"minLength": 2}}, "if"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": {"type": "integer"}}, "contains"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    "dependentRequired": (
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        "dependentRequired",
    ),
    "unevaluatedProperties": (
        {"type": "object", "unevaluatedProperties": False},
        "unevaluatedProperties",
    ),
    "an unknown format": ({"type": "string", "format": "martian"}, "martian"),
    "oneOf that overlaps": (
        {"oneOf": [{"minLength": 1, "type": "string"}, {"type": "string"}]},
        "oneOf",
    ),
    "look-around": ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    "a remote reference": ({"$ref": "http://example.invalid/schema"}, "example.invalid"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "$defs/none"),
    "nothing to choose": ({"enum": []}, "nsatisfiable"),
    "a false property": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "nsatisfiable",
    ),
    "contradicting bounds": ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    "itself": ({"$ref": "#"}, "no answer"),
    "no schema": ({"type": "strin"}, "strin"),
    "an unknown draft": ({"$schema": "http://example.invalid/draft", "type": "string"}, "$schema"),
}


def of(tokenizer: HfTokenizer, schema: object, strict: bool = True) -> ConstraintGrammar:
    body = JsonSchema(json.dumps(schema), strict)
    return compose_grammar(
        tokenizer.special_tokens, body=body, body_param="response_format.json_schema.schema"
    )


@pytest.mark.parametrize("name", SUPPORTED)
def test_random_constrained_answers_validate_against_schema(
    name: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    schema = SUPPORTED[name]
    eos = embedded.special_tokens[EOS]
    compiled = compiler.compile(of(embedded, schema))
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    walks = [
        walk(compiled.build_matcher(), embedded, eos, Random(f"{name}{seed}")) for seed in range(4)
    ]
    ended = [text(embedded, ids) for ids in walks if ids is not None]
    assert ended
    for answer in ended:
        validator.validate(json.loads(answer))


@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        ("date", r"\d{4}-[01]\d-[0-3]\d"),
        ("time", r"[0-2]\d:[0-5]\d:[0-6]\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"),
        (
            "date-time",
            r"\d{4}-[01]\d-[0-3]\d[Tt][0-2]\d:[0-5]\d:[0-6]\d(\.\d+)?([zZ]|[+-]\d\d:\d\d)",
        ),
        ("duration", r"P[0-9YMDTHSW]+"),
        ("email", r"[^@\s]+@[^@\s]+"),
        ("hostname", r"[A-Za-z0-9.-]+"),
    ],
)
def test_string_formats_are_enforced(
    format: str, pattern: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    compiled = compiler.compile(of(embedded, {"type": "string", "format": format}))
    eos = embedded.special_tokens[EOS]
    walks = [
        walk(compiled.build_matcher(), embedded, eos, Random(f"{format}{seed}"))
        for seed in range(4)
    ]
    ended = [json.loads(text(embedded, ids)) for ids in walks if ids is not None]
    assert ended
    assert all(re.fullmatch(pattern, answer) for answer in ended), ended


@pytest.mark.parametrize(
    ("answer", "fits"), [('"https://a.b/c?d=e#f"', True), ('"no uri"', False), ('"a b:c"', False)]
)
def test_uri_format_is_enforced(
    answer: str, fits: bool, embedded: HfTokenizer, compiler: Compiler
) -> None:
    ids = embedded.encode(answer, special=False)
    grammar = of(embedded, {"type": "string", "format": "uri"})
    assert accepts(compiler, grammar, ids, embedded.special_tokens[EOS]) is fits


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_schema_keyword_is_rejected_by_name(
    name: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    schema, word = REFUSED[name]
    with pytest.raises(RequestError, match=re.escape(word)) as caught:
        compiler.compile(of(embedded, schema))
    assert (caught.value.status, caught.value.param) == (400, "response_format.json_schema.schema")
    assert "\n" not in caught.value.message
    assert "%json" not in caught.value.message


def test_false_schema_is_unsatisfiable(embedded: HfTokenizer, compiler: Compiler) -> None:
    with pytest.raises(RequestError, match="nsatisfiable"):
        compiler.compile(of(embedded, False))


def test_non_strict_schema_with_unsupported_keyword_warns(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 1}
    compiled = compiler.compile(of(embedded, schema, strict=False))
    assert any("uniqueItems" in warning for warning in compiled.warnings)
    ids = walk(compiled.build_matcher(), embedded, embedded.special_tokens[EOS], Random(1))
    assert ids is not None
    assert all(isinstance(n, int) for n in json.loads(text(embedded, ids)))


def test_supported_schema_gives_no_warning(embedded: HfTokenizer, compiler: Compiler) -> None:
    assert compiler.compile(of(embedded, SUPPORTED["pattern"])).warnings == ()


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ('{"n": 12}', True),
        ('{"n": 12.0}', False),
        ('{"n": 1e2}', False),
        ('{"n":12}', False),
        ('{"n":  12}', False),
        ('{ "n": 12}', False),
        ('{"n": 12}\n', False),
        ('{"n": 12', False),
        ('{"n": 012}', False),
        ('{"n": "12"}', False),
        ('{"n": 12, "m": 1}', False),
    ],
)
def test_schema_grammar_accepts_only_canonical_json(
    answer: str, fits: bool, embedded: HfTokenizer, compiler: Compiler
) -> None:
    grammar = of(embedded, close(n={"type": "integer"}))
    ids = embedded.encode(answer, special=False)
    assert accepts(compiler, grammar, ids, embedded.special_tokens[EOS]) is fits


def test_end_token_is_allowed_only_after_complete_instance(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    eos = embedded.special_tokens[EOS]
    matcher = compiler.compile(
        of(embedded, close(a={"type": "array", "items": {"type": "null"}}))
    ).build_matcher()
    for id in embedded.encode('{"a": [null]}', special=False):
        assert eos not in list_allowed(matcher, embedded.vocab_size)
        assert not matcher.finished
        assert matcher.advance(id)
    assert list_allowed(matcher, embedded.vocab_size) == [eos]
    assert matcher.finished


@pytest.mark.parametrize(
    "body", [AnyJsonObject(), JsonSchema('{"type":"string"}'), JsonSchema("true")]
)
def test_mask_excludes_control_tokens(
    body: AnyJsonObject | JsonSchema, embedded: HfTokenizer, compiler: Compiler
) -> None:
    eos = embedded.special_tokens[EOS]
    controls = set(embedded.special_tokens.values())
    matcher = compiler.compile(compose_grammar(embedded.special_tokens, body=body)).build_matcher()
    random = Random(3)
    for _ in range(60):
        choices = list_allowed(matcher, embedded.vocab_size)
        assert controls.isdisjoint(set(choices) - {eos})
        if choices == [eos]:
            break
        assert matcher.advance(random.choice([id for id in choices if id != eos]))


def test_schema_grammar_limits_whitespace(embedded: HfTokenizer, compiler: Compiler) -> None:
    blank = embedded.encode(" ", special=False)
    matcher = compiler.compile(
        compose_grammar(embedded.special_tokens, body=AnyJsonObject())
    ).build_matcher()
    assert matcher.advance(embedded.encode("{", special=False)[0])
    assert not matcher.advance(blank[0])


def deep(levels: int) -> str:
    return '{"properties":{"a":' * levels + "true" + "}}" * levels


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ('{"description":"' + "x" * 65_536 + '"}', "64 KiB"),
        ('{"description":"' + "é" * 33_000 + '"}', "64 KiB"),
        (deep(33), "32 levels"),
        ('{"enum":[' + "[" * 5_000 + "]" * 5_000 + "]}", "32 levels"),
        ("[]", "object or a boolean"),
        ('"string"', "object or a boolean"),
        ("{", "not JSON"),
        ("", "not JSON"),
        ('{"const": NaN}', "not JSON"),
        ('{"const": 1e999}', "not JSON"),
        ('{"const": "\\ud800"}', "not JSON"),
        ('{"minLength": -1}', "minLength"),
        ('{"required": ["a", "a"]}', "required"),
    ],
)
def test_parse_schema_rejects_invalid_schema(schema: str, word: str) -> None:
    with pytest.raises(RequestError, match=word) as caught:
        parse_schema(schema, "tools.0.function.parameters")
    assert caught.value.param == "tools.0.function.parameters"
    assert len(caught.value.message) < 1_000


@pytest.mark.parametrize(
    "schema",
    ["true", "false", "{}", deep(32), '{"$schema":"http://json-schema.org/draft-07/schema#"}'],
)
def test_parse_schema_accepts_valid_schema(schema: str) -> None:
    parse_schema(schema, "response_format")


def same(*patterns: str) -> Schema:
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


TOO_MUCH: dict[str, Schema] = {
    "choices of choices": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]}
            for i in range(12)
        ]
    },
    "patterns that meet": same(*(f"a.*b.*{i}" for i in range(40))),
    "patterns that meet by references": {
        "$defs": {
            f"d{i}": {"$ref": f"#/$defs/d{i + 1}", "pattern": f"a.*b.*{i}"} for i in range(40)
        }
        | {"d40": {}},
        "$ref": "#/$defs/d0",
    },
    "huge patterns that meet": same(
        *(".*".join(f"[{c}-z]{j}" for j in range(100)) for c in "abcd")
    ),
    "a great multiple": {"type": "integer", "multipleOf": 1_000_000_007},
    "references in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
}
MUCH: dict[str, Schema] = {
    "many of many": {
        "type": "array",
        "maxItems": 10**6,
        "items": {"type": "array", "minItems": 10**6},
    },
    "a long string": {"type": "string", "minLength": 10**6, "maxLength": 10**9},
    "a catastrophic pattern": {
        "type": "string",
        "pattern": "^((a{1,300}){1,300}){1,300}(.*b.{900}c)$",
    },
    "many choices": {"enum": [f"value {i}" for i in range(3_000)]},
    "many patterns apart": close(
        **{f"p{i}": {"type": "string", "pattern": f"^a.*b.*{i}$"} for i in range(100)}
    ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_compile_rejects_too_complex_schema(
    name: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    with pytest.raises(RequestError):
        compiler.compile(of(embedded, TOO_MUCH[name]))


@pytest.mark.parametrize("name", MUCH)
def test_compile_accepts_large_but_cheap_schema(
    name: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    matcher = compiler.compile(of(embedded, MUCH[name])).build_matcher()
    random = Random(5)
    for _ in range(40):
        choices = list_allowed(matcher, embedded.vocab_size)
        assert matcher.advance(random.choice(choices))


def test_schema_error_names_offending_param(embedded: HfTokenizer, compiler: Compiler) -> None:
    head = '<tool_call>\n{"name": "f", "arguments": '
    bad = JsonPiece('{"type":"object","properties":{"a":{"type":"array","contains":{}}}}')
    forms = (
        CallForm(
            (LiteralText(head), JsonPiece("{}"), LiteralText("}")), "tools.0.function.parameters"
        ),
        CallForm((LiteralText(head), bad, LiteralText("}")), "tools.1.function.parameters"),
    )
    with pytest.raises(RequestError, match="contains") as caught:
        compiler.compile(
            compose_grammar(
                embedded.special_tokens, body=AnyJsonObject(), calls=ToolCallRules(forms)
            )
        )
    assert caught.value.param == "tools.1.function.parameters"
