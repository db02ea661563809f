"""Schemas, patterns and grammars that clients send: vLLM CVE-2025-48942,
CVE-2025-48943, CVE-2025-48944.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

HI: Any = [{"role": "user", "content": "hi"}]


def build_nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


WRONG: list[dict[str, Any]] = [
    {"guided_json": build_nested(40)},
    {"guided_json": {"type": "string", "description": "x" * 70_000}},
    {"guided_json": {"type": "nonsense"}},
    {"guided_json": {"$ref": "https://evil.example/schema"}},
    {"guided_json": {"$schema": "https://evil.example/schema"}},
    {"guided_json": {"type": "string", "pattern": "(" * 50}},
    {"guided_regex": "a" * 5000},
    {"guided_regex": "("},
    {"guided_regex": "(?=a)b"},
    {"guided_grammar": "start: " + "x" * 70_000},
    {"guided_grammar": "start: start"},
    {"guided_choice": ["a"] * 2000},
    {"structured_outputs": {"regex": "(" * 4000}},
]


@pytest_asyncio.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http_client:
        yield http_client
    await models.stop()


async def test_invalid_schemas_return_400_and_next_request_succeeds(
    client: httpx2.AsyncClient,
):
    for fields in WRONG:
        answer = await client.post(
            "/v1/chat/completions", json={"messages": HI, "max_tokens": 1, **fields}
        )
        assert answer.status_code == 400, json.dumps(fields)[:200]
        assert answer.json()["error"]["param"], json.dumps(fields)[:200]
    fine = await client.post(
        "/v1/chat/completions", json={"messages": HI, "max_tokens": 1, "guided_regex": "a+"}
    )
    assert fine.status_code == 200


async def test_schema_with_900_optional_properties_is_accepted(client: httpx2.AsyncClient):
    """llguidance accepts a grammar whose first step exceeds its limit on row items: 800
    properties were too many.
    """
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}}
    answer = await client.post(
        "/v1/chat/completions", json={"messages": HI, "max_tokens": 9, "guided_json": schema}
    )
    assert answer.status_code == 200


async def test_tool_schema_too_deep_warns_and_is_not_enforced(
    client: httpx2.AsyncClient,
):
    """The model still sees the tool: agents send the tools that they have."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": build_nested(40)}}]
    answer = await client.post(
        "/v1/chat/completions", json={"messages": HI, "max_tokens": 1, "tools": tools}
    )
    assert "parameters is not enforced" in answer.headers["x-dragoman-warnings"]


HARD = [
    *(
        r"(a+)+$",
        r"(a|a)*b",
        r"([a-z]+)*x",
        r"(x+x+)+y",
        r"(.*)*(.*)*z",
        "(a?){50}a{50}",
        r"(a|aa|aaa)+c",
    ),
    "((a{1,9999}){1,9999}){1,9999}",
]


async def test_guided_regex_backtracking_patterns_do_not_hang(client: httpx2.AsyncClient):
    """The regex engine does not backtrack: such a pattern takes as long as others, or
    is rejected for its size.
    """
    for pattern in HARD:
        answer = await client.post(
            "/v1/chat/completions", json={"messages": HI, "max_tokens": 30, "guided_regex": pattern}
        )
        assert answer.status_code in (200, 400), pattern
