"""A schema keyword that no mask can enforce is reported: in a warning, or in the 400 of
a strict server.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

KEYWORDS: dict[str, dict[str, Any]] = {
    "uniqueItems": {
        "type": "array",
        "items": {"enum": ["x"]},
        "uniqueItems": True,
        "minItems": 3,
        "maxItems": 3,
    },
    "if": {"type": "string", "maxLength": 3, "if": {"minLength": 1}, "then": {"maxLength": 2}},
    "not": {"enum": ["x", "y"], "not": {"const": "y"}},
    "contains": {
        "type": "array",
        "items": {"enum": ["x"]},
        "contains": {"const": "y"},
        "maxItems": 2,
    },
    "dependentRequired": {"type": "object", "dependentRequired": {"b": ["c"]}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 3}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "oneOf": {"oneOf": [{"enum": ["x", "y"]}, {"enum": ["y", "z"]}]},
    "martian": {"enum": ["x"], "type": "string", "format": "martian"},
}
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
ANTHROPIC = "/v1/messages"


def wrap(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"a": part},
        "required": ["a"],
        "additionalProperties": False,
    }


def lenient_entries(schema: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Yield requests with a schema without `strict`: (path, body, name of the field in
    the warning).
    """
    chat = {"messages": MESSAGES, "max_tokens": 4}
    responses = {"input": "Hi", "max_output_tokens": 16}
    function = {"name": "f", "parameters": schema}
    json_schema = {"name": "x", "schema": schema}
    return {
        "chat, json_schema": (
            CHAT,
            {**chat, "response_format": {"type": "json_schema", "json_schema": json_schema}},
            "response_format",
        ),
        "chat, json_object": (
            CHAT,
            {**chat, "response_format": {"type": "json_object", "schema": schema}},
            "response_format",
        ),
        "chat, auto tool": (
            CHAT,
            {**chat, "tools": [{"type": "function", "function": function}]},
            "tools[0].function.parameters",
        ),
        "chat, required tool": (
            CHAT,
            {
                **chat,
                "tools": [{"type": "function", "function": function}],
                "tool_choice": "required",
            },
            "tools[0].function.parameters",
        ),
        "completions": (
            "/v1/completions",
            {
                "prompt": "Hi",
                "max_tokens": 4,
                "response_format": {"type": "json_schema", "json_schema": json_schema},
            },
            "response_format",
        ),
        "responses, format": (
            RESPONSES,
            {**responses, "text": {"format": {"type": "json_schema", **json_schema}}},
            "text.format",
        ),
        "responses, tool": (
            RESPONSES,
            {**responses, "tools": [{"type": "function", **function, "strict": False}]},
            "tools[0].parameters",
        ),
        "messages, tool": (
            ANTHROPIC,
            {**chat, "model": "tiny", "tools": [{"name": "f", "input_schema": schema}]},
            "tools[0].input_schema",
        ),
    }


def strict_entries(schema: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Yield requests that rely on the schema: keywords that cannot be enforced are a
    400.
    """
    chat = {"messages": MESSAGES, "max_tokens": 4}
    responses = {"input": "Hi", "max_output_tokens": 16}
    json_schema = {"name": "x", "schema": schema, "strict": True}
    function = {"name": "f", "parameters": schema, "strict": True}
    return {
        "chat, json_schema": (
            CHAT,
            {**chat, "response_format": {"type": "json_schema", "json_schema": json_schema}},
        ),
        "chat, tool": (CHAT, {**chat, "tools": [{"type": "function", "function": function}]}),
        "chat, structured_outputs": (CHAT, {**chat, "structured_outputs": {"json": schema}}),
        "chat, guided_json": (CHAT, {**chat, "guided_json": schema}),
        "responses": (
            RESPONSES,
            {**responses, "text": {"format": {"type": "json_schema", **json_schema}}},
        ),
        "responses, tool": (RESPONSES, {**responses, "tools": [{"type": "function", **function}]}),
        "messages": (
            ANTHROPIC,
            {
                **chat,
                "model": "tiny",
                "output_config": {"format": {"type": "json_schema", "schema": schema}},
            },
        ),
        "messages, tool": (
            ANTHROPIC,
            {
                **chat,
                "model": "tiny",
                "tools": [{"name": "f", "input_schema": schema, "strict": True}],
            },
        ),
        "sglang": (
            "/generate",
            {
                "text": "Hi",
                "sampling_params": {"max_new_tokens": 4, "json_schema": json_of(schema)},
            },
        ),
        "tgi": (
            "/generate",
            {
                "inputs": "Hi",
                "parameters": {"max_new_tokens": 4, "grammar": {"type": "json", "value": schema}},
            },
        ),
    }


def json_of(schema: dict[str, Any]) -> str:
    return httpx2.Request("POST", "http://localhost", json=schema).content.decode()


@asynccontextmanager
async def serve(
    settings: Settings | None = None, *, strict: bool = False
) -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(settings or Settings(), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models, options=ServingOptions(strict=strict)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


async def post(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> httpx2.Response:
    headers = {"anthropic-version": "2023-06-01"} if path == ANTHROPIC else {}
    return await client.post(path, json=body, headers=headers)


async def test_unenforced_keyword_is_named_in_warning() -> None:
    async with serve() as client:
        for keyword, part in KEYWORDS.items():
            for name, (path, body, param) in lenient_entries(wrap(part)).items():
                answer = await post(client, path, body)
                assert answer.status_code == 200, (name, keyword, answer.text)
                warnings = answer.headers.get("x-dragoman-warnings", "")
                assert re.search(rf"{re.escape(param)}[^;]*\b{keyword}\b", warnings), (
                    name,
                    keyword,
                    warnings,
                )


async def test_same_schema_again_gives_same_warning() -> None:
    async with serve() as client:
        for name, (path, body, _) in lenient_entries(wrap(KEYWORDS["uniqueItems"])).items():
            answers = [await post(client, path, body) for _ in range(2)]
            first, second = (answer.headers["x-dragoman-warnings"] for answer in answers)
            assert first == second, name


async def test_enforced_keyword_gives_no_warning() -> None:
    async with serve() as client:
        for name, (path, body, _) in lenient_entries(
            wrap({"enum": ["x", "y"], "title": "T"})
        ).items():
            answer = await post(client, path, body)
            assert answer.status_code == 200
            assert "x-dragoman-warnings" not in answer.headers, (name, answer.headers)


async def test_other_keywords_of_schema_are_enforced() -> None:
    async with serve() as client:
        path, body, _ = lenient_entries(wrap(KEYWORDS["uniqueItems"]))["chat, json_schema"]
        answer = await post(client, path, {**body, "max_tokens": 60})
        assert answer.json()["choices"][0]["message"]["content"] == '{"a": ["x", "x", "x"]}'


async def test_strict_server_rejects_unenforced_keyword() -> None:
    async with serve(strict=True) as client:
        for keyword in ("uniqueItems", "oneOf"):
            for name, (path, body, _) in lenient_entries(wrap(KEYWORDS[keyword])).items():
                answer = await post(client, path, body)
                assert answer.status_code == 400, (name, keyword, answer.text)
                assert keyword in answer.text, (name, answer.text)


async def test_strict_schema_with_unenforced_keyword_returns_400() -> None:
    async with serve() as client:
        for keyword in ("uniqueItems", "not"):
            for name, (path, body) in strict_entries(wrap(KEYWORDS[keyword])).items():
                answer = await post(client, path, body)
                assert answer.status_code in (400, 422), (name, keyword, answer.text)
                assert keyword in answer.text, (name, answer.text)


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "pythonic", "gemma4"])
async def test_tool_call_formats_name_unenforced_keyword(parser: str) -> None:
    """Families that write arguments one by one have no single schema in their grammar."""
    schema = {**wrap({"type": "string"}), "dependentRequired": {"a": ["b"]}}
    async with serve(Settings(max_model_len=2048, tool_call_parser=parser)) as client:
        for part in (
            wrap(KEYWORDS["uniqueItems"]),
            wrap({"type": "string", "format": "martian"}),
            schema,
        ):
            answer = await post(client, *lenient_entries(part)["chat, required tool"][:2])
            assert answer.status_code == 200, answer.text
            warnings = answer.headers.get("x-dragoman-warnings", "")
            assert re.search(r"uniqueItems|format|dependentRequired", warnings), (
                parser,
                part,
                warnings,
            )


BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "two patterns": ("pattern", {"anyOf": [{"type": "string", "pattern": "^a"}], "pattern": "b$"}),
    "an enum with a pattern": ("pattern", {"enum": ["ab", "b"], "pattern": "^a"}),
    "a constant with a format": ("format", {"const": "x", "format": "date"}),
    "values that match twice": ("oneOf", {"oneOf": [{"enum": ["x", "y"]}, {"enum": ["y", "z"]}]}),
    "types that match twice": ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    "a part with a type": ("allOf", {"type": "string", "allOf": [{"maxLength": 3}]}),
}
"""Keywords beside an argument's alternatives, which used to be dropped silently."""


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45", "deepseek_v32", "gemma4"])
@pytest.mark.parametrize("case", BESIDE)
async def test_keyword_beside_alternatives_is_named_in_warning(parser: str, case: str) -> None:
    keyword, part = BESIDE[case]
    settings = Settings(max_model_len=2048, tool_call_parser=parser)
    async with serve(settings) as client, serve(settings, strict=True) as strict:
        path, body, param = lenient_entries(wrap(part))["chat, required tool"]
        answer = await post(client, path, body)
        assert answer.status_code == 200, answer.text
        warnings = answer.headers.get("x-dragoman-warnings", "")
        assert re.search(rf"{re.escape(param)}[^;]*\b{keyword}\b", warnings), warnings
        assert (await post(strict, path, body)).status_code == 400
        assert keyword in (await post(strict, path, body)).text


@pytest.mark.parametrize("parser", ["qwen3_coder", "gemma4", "lfm2"])
@pytest.mark.parametrize(
    "part",
    [
        {"anyOf": [{"type": "string"}, {"type": "integer"}], "maxLength": 3, "minimum": 5},
        {"enum": ["a", "bb", 7], "maxLength": 1, "type": ["string", "integer"]},
        {"oneOf": [{"type": "string"}, {"type": "null"}], "title": "T"},
        {"oneOf": [{"const": "x"}, {"const": "y"}], "description": "D"},
    ],
)
async def test_enforceable_keyword_beside_alternatives_is_enforced(
    parser: str, part: dict[str, Any]
) -> None:
    async with serve(Settings(max_model_len=2048, tool_call_parser=parser), strict=True) as strict:
        answer = await post(strict, *lenient_entries(wrap(part))["chat, required tool"][:2])
        assert answer.status_code == 200, answer.text
        assert "x-dragoman-warnings" not in answer.headers


async def test_additional_properties_of_text_arguments_are_named() -> None:
    async with serve(Settings(max_model_len=2048, tool_call_parser="qwen3_coder")) as client:
        schema = {"type": "object", "additionalProperties": {"type": "integer"}}
        answer = await post(client, *lenient_entries(schema)["chat, required tool"][:2])
        assert answer.status_code == 200, answer.text
        assert "additionalProperties" in answer.headers.get("x-dragoman-warnings", "")


async def test_strict_tool_with_unenforceable_keyword_returns_400() -> None:
    async with serve(Settings(max_model_len=2048, tool_call_parser="qwen3_coder")) as client:
        answer = await post(
            client, *strict_entries(wrap({"type": "string", "format": "date"}))["chat, tool"]
        )
        assert answer.status_code == 400, answer.text
        assert "format" in answer.json()["error"]["message"]


async def test_simulator_names_unenforced_keyword() -> None:
    async with serve(Settings(model="sim")) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        for name, (path, body, param) in lenient_entries(wrap(KEYWORDS["uniqueItems"])).items():
            answer = await post(client, path, {**body, "model": model})
            assert answer.status_code == 200, (name, answer.text)
            assert param in answer.headers.get("x-dragoman-warnings", ""), name
