"""A regular expression that no grammar enforces is left out of its schema, and reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.pipeline.test_unenforced_schemas import (
    lenient_entries,
    post,
    serve,
    strict_entries,
    wrap,
)

from dragoman.constraints.schema_patterns import find_patterns, is_regex, remove_patterns
from dragoman.settings import Settings

REJECTED = {
    "look-ahead": (r"^(?!\s*$).+", "look-around"),
    "look-behind": (r"(?<=a)b$", "look-around"),
    "decimal": (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "look-around"),
    "word boundary": (r"\bx\b", "look-around"),
    "back-reference": (r"(a)\1", "back-references"),
    "named back-reference": (r"(?<n>a)\k<n>", "cannot be compiled"),
    "unclosed": ("(", "cannot be compiled"),
    "atomic": ("(?>a)", "cannot be compiled"),
}

RELYING = ("chat, structured_outputs", "chat, guided_json", "sglang", "tgi")
"""Requests without `strict` that rely on the schema: an invalid pattern is an error."""


def build_schema(pattern: str) -> dict[str, Any]:
    """Build a schema in which everything but the pattern has one value."""
    return {
        "type": "object",
        "properties": {
            "kind": {"const": "x"},
            "note": {"type": "string", "pattern": pattern, "maxLength": 2},
        },
        "required": ["kind", "note"],
        "additionalProperties": False,
    }


def build_entries(schema: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Build the requests in which the rest of a schema must stay enforced."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40}
    relying = strict_entries(schema)
    return lenient_entries(schema) | {
        "ollama": (
            "/api/chat",
            {"model": "tiny", "messages": chat["messages"], "stream": False, "format": schema},
            "format",
        ),
        "chat, structured_outputs": (
            *relying["chat, structured_outputs"],
            "structured_outputs.json",
        ),
        "chat, guided_json": (*relying["chat, guided_json"], "guided_json"),
        "sglang": (*relying["sglang"], "sampling_params.json_schema"),
        "tgi": (*relying["tgi"], "parameters.grammar"),
    }


@pytest.mark.parametrize("case", REJECTED)
async def test_rejected_pattern_is_left_out_with_warning(case: str) -> None:
    pattern, reason = REJECTED[case]
    async with serve() as client:
        for name, (path, body, param) in build_entries(build_schema(pattern)).items():
            answer = await post(client, path, body)
            if not is_regex(pattern) and name in RELYING:
                assert answer.status_code in (400, 422), (name, answer.text)
                continue
            assert answer.status_code == 200, (name, answer.text)
            warning = answer.headers.get("x-dragoman-warnings", "")
            assert f"{param} is not fully enforced: `pattern` at $.properties.note.pattern" in (
                warning
            ), name
            assert reason in warning, name


GREEDY = {"max_tokens": 80, "temperature": 0}


def check_rest(text: str) -> None:
    value = json.loads(text)
    assert value.keys() == {"kind", "note"}
    assert value["kind"] == "x"
    assert len(value["note"]) <= 2


async def test_rest_of_schema_with_rejected_pattern_is_enforced() -> None:
    schema = build_schema(r"^(?!\s*$).+")
    async with serve() as client:
        path, body, _ = build_entries(schema)["chat, json_schema"]
        answer = await post(client, path, {**body, **GREEDY})
        check_rest(answer.json()["choices"][0]["message"]["content"])
        path, body, _ = build_entries(schema)["chat, required tool"]
        answer = await post(client, path, {**body, **GREEDY, "parallel_tool_calls": False})
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        check_rest(call["function"]["arguments"])


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45", "gemma4", "pythonic"])
async def test_rejected_pattern_in_other_call_formats_is_left_out(parser: str) -> None:
    async with serve(Settings(max_model_len=2048, tool_call_parser=parser)) as client:
        path, body, param = lenient_entries(build_schema(r"^(?!a)b"))["chat, required tool"]
        answer = await post(client, path, body)
        assert answer.status_code == 200, answer.text
        warning = answer.headers["x-dragoman-warnings"]
        assert f"{param} is not fully enforced: `pattern` at $.properties.note.pattern" in warning


async def test_rejected_pattern_of_strict_schema_is_400() -> None:
    schema = build_schema("(?=a)a")
    async with serve() as client:
        for name in ("chat, json_schema", "chat, tool", "responses", "messages", "messages, tool"):
            path, body = strict_entries(schema)[name]
            answer = await post(client, path, body)
            assert answer.status_code == 400, (name, answer.text)
            assert "look-around" in answer.text, name


async def test_rejected_pattern_on_strict_server_is_400() -> None:
    async with serve(strict=True) as client:
        for name, (path, body, _) in build_entries(build_schema("(?=a)a")).items():
            answer = await post(client, path, body)
            assert answer.status_code in (400, 422), (name, answer.text)
            assert "look-around" in answer.text, name


async def test_enforceable_pattern_beside_rejected_one_is_enforced() -> None:
    schema = wrap({"type": "string", "pattern": "^x{3}$"})
    schema["properties"]["b"] = {"type": "string", "pattern": "(?!a)", "maxLength": 1}
    async with serve() as client:
        path, body, _ = lenient_entries(schema)["chat, json_schema"]
        answer = await post(client, path, {**body, **GREEDY})
        assert json.loads(answer.json()["choices"][0]["message"]["content"])["a"] == "xxx"
        assert "$.properties.a" not in answer.headers["x-dragoman-warnings"]


def test_find_patterns_names_every_place() -> None:
    schema: Any = {
        "properties": {"pattern": {"pattern": "a"}, "x y": {"items": {"pattern": "b"}}},
        "patternProperties": {"^c": {"anyOf": [{"pattern": "a"}]}},
        "$defs": {"d": {"pattern": "b"}},
        "const": {"pattern": "e"},
    }
    assert find_patterns(schema) == {
        "a": ["$.properties.pattern.pattern", "$.patternProperties['^c'].anyOf[0].pattern"],
        "b": ["$.properties['x y'].items.pattern", "$['$defs'].d.pattern"],
        "^c": ["$.patternProperties['^c']"],
    }


@pytest.mark.parametrize(
    ("others", "wanted"),
    [
        ({}, True),
        ({"additionalProperties": True}, True),
        ({"additionalProperties": False}, {"type": "integer"}),
        (
            {"additionalProperties": {"type": "null"}},
            {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        ),
    ],
)
def test_removed_name_pattern_keeps_its_members_allowed(others: Any, wanted: Any) -> None:
    schema: Any = {"patternProperties": {"(?!a)": {"type": "integer"}, "^b": {}}, **others}
    assert remove_patterns(schema, {"(?!a)"}) == {
        "patternProperties": {"^b": {}},
        "additionalProperties": wanted,
    }
