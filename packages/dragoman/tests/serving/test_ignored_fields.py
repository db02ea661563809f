"""Fields that the embedded model and its template have no place for are reported."""

from __future__ import annotations

from typing import Any

import pytest
from tests.pipeline.test_unenforced_schemas import serve

NAME = "x-dragoman-warnings"
USER = {"role": "user", "content": "Hi there, how are you today?"}
FORMAT = {"name": "n", "description": "An answer", "schema": {"type": "object"}}
CHAT = {"max_tokens": 2, "messages": [USER]}

REPORTED: list[tuple[str, dict[str, Any], str]] = [
    (
        "/v1/chat/completions",
        {**CHAT, "messages": [{**USER, "name": "ann"}]},
        "messages[].name is ignored",
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "response_format": {"type": "json_schema", "json_schema": FORMAT}},
        "response_format.json_schema.description is ignored",
    ),
    (
        "/v1/responses",
        {
            "input": "Hi",
            "max_output_tokens": 2,
            "text": {"format": {"type": "json_schema", **FORMAT}},
        },
        "text.format.description is ignored",
    ),
    (
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 2, "reasoning": {"summary": "concise"}},
        "reasoning.summary: 'concise' is not available",
    ),
    (
        "/v1/responses",
        {"input": [{**USER, "status": "bogus"}], "max_output_tokens": 2},
        "input[0].status is ignored: 'bogus' is none of in_progress, completed, incomplete",
    ),
    (
        "/v1/responses",
        {
            "input": [{"role": "assistant", "content": "a", "phase": "commentary"}, USER],
            "max_output_tokens": 2,
        },
        "input[0].phase is ignored",
    ),
    (
        "/api/chat",
        {"messages": [USER], "options": {"num_ctx": 4, "num_predict": 2}, "stream": False},
        "options.num_ctx: the prompt has",
    ),
    (
        "/api/chat",
        {"messages": [USER], "options": {"num_keep": 24, "num_predict": 2}, "stream": False},
        "options.num_keep: the context is never shifted",
    ),
]
SILENT: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "reasoning": {"summary": "auto"}}),
    ("/v1/responses", {"input": [{**USER, "status": "completed"}], "max_output_tokens": 2}),
    (
        "/api/chat",
        {
            "messages": [USER],
            "options": {"num_ctx": 400, "num_keep": 4, "num_predict": 2},
            "stream": False,
        },
    ),
]


@pytest.mark.parametrize(("path", "body", "warning"), REPORTED, ids=str)
async def test_field_without_effect_is_reported(
    path: str, body: dict[str, Any], warning: str
) -> None:
    async with serve() as client:
        answer = await client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    assert warning in answer.headers.get(NAME, "")


@pytest.mark.parametrize(("path", "body"), SILENT, ids=str)
async def test_field_with_effect_is_not_reported(path: str, body: dict[str, Any]) -> None:
    async with serve() as client:
        answer = await client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 200, answer.text
    assert NAME not in answer.headers
