"""A field that an upstream has no place for is reported; another reaches it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engines.upstream.test_history import GENERATING, USER, forward
from tests.engines.upstream.test_warnings import NAME

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
FORMAT: dict[str, Any] = {"name": "n", "description": "A made-up answer", "schema": SCHEMA}
REQUESTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [USER],
            "response_format": {"type": "json_schema", "json_schema": FORMAT},
        },
        "response_format.json_schema.description",
    ),
    "responses": (
        "/v1/responses",
        {
            "input": [USER],
            "max_tokens": None,
            "store": False,
            "text": {"format": {"type": "json_schema", **FORMAT}},
        },
        "text.format.description",
    ),
}


@pytest.mark.parametrize("kind", GENERATING)
@pytest.mark.parametrize("dialect", REQUESTS)
async def test_schema_description_is_forwarded_or_reported(dialect: str, kind: str) -> None:
    path, body, param = REQUESTS[dialect]
    answer, received = await forward(path, body, kind)
    is_forwarded = "A made-up answer" in json.dumps(received)
    assert is_forwarded != (param in answer.headers.get(NAME, ""))
    assert is_forwarded == (kind not in ("anthropic", "gemini"))


@pytest.mark.parametrize("kind", GENERATING)
async def test_add_special_tokens_is_forwarded_or_reported(kind: str) -> None:
    body = {"messages": [USER], "add_special_tokens": True}
    answer, received = await forward("/v1/chat/completions", body, kind)
    is_forwarded = received.get("add_special_tokens") is True
    assert is_forwarded != ("add_special_tokens" in answer.headers.get(NAME, ""))
    assert is_forwarded == (kind in ("vllm", "dragoman"))
    answer, _ = await forward("/v1/chat/completions", {"messages": [USER]}, kind)
    assert "add_special_tokens" not in answer.headers.get(NAME, "")
