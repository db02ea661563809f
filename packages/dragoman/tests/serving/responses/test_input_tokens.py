"""Counts equal those of the call; input that does not fit is truncated by whole turns
with a warning.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore

LIMIT = 512
TOOL: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
LONG = "word " * 60
PAST = [
    each
    for i in range(8)
    for each in (
        {"role": "user", "content": f"Question {i}: {LONG}"},
        {"role": "assistant", "content": f"Answer {i}."},
    )
]
CALLS = [
    each
    for i in range(8)
    for each in (
        {"type": "function_call", "call_id": f"c{i}", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": f"c{i}", "output": LONG},
    )
]
LAST = {"role": "user", "content": "What is 3 + 4?"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(max_model_len=LIMIT), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models, store=MemoryStore()))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await models.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "body",
    [
        {"input": "Hello"},
        {"input": [LAST], "instructions": "Be brief.", "tools": [TOOL]},
        {"input": [LAST], "instructions": "Be brief.", "tools": [TOOL], "tool_choice": "none"},
        {"input": [LAST], "reasoning": {"effort": "high"}},
        {"input": [*PAST, LAST], "truncation": "auto"},
    ],
)
async def test_input_tokens_count_equals_usage_of_response(
    client: httpx2.AsyncClient, body: dict[str, Any]
):
    sdk = openai.AsyncOpenAI(
        api_key="none", base_url="http://localhost/v1", http_client=client, max_retries=0
    )
    counted = await sdk.responses.input_tokens.count(model="tiny", **body)
    assert counted.object == "response.input_tokens"
    called = await client.post("/v1/responses", json={**body, "max_output_tokens": 16})
    assert called.json()["usage"]["input_tokens"] == counted.input_tokens


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("input", [[*PAST, LAST], [LAST, *CALLS]], ids=("questions", "calls"))
async def test_oversized_input_truncated_with_warning_or_rejected(
    client: httpx2.AsyncClient, input: list[Any]
):
    async def ask(**fields: Any) -> httpx2.Response:
        return await client.post(
            "/v1/responses", json={"input": input, "max_output_tokens": 16, **fields}
        )

    rejected = await ask()
    assert (rejected.status_code, rejected.json()["error"]["code"]) == (
        400,
        "context_length_exceeded",
    )
    answer = await ask(truncation="auto")
    assert answer.status_code == 200
    assert answer.json()["truncation"] == "auto"
    assert "oldest messages were omitted" in answer.headers["x-dragoman-warnings"]
    assert answer.json()["usage"]["input_tokens"] <= LIMIT - 16


@pytest.mark.asyncio(loop_scope="module")
async def test_truncation_auto_rejects_single_oversized_turn(
    client: httpx2.AsyncClient,
):
    fits = await client.post(
        "/v1/responses", json={"input": "Hi", "truncation": "auto", "max_output_tokens": 16}
    )
    assert "x-dragoman-warnings" not in fits.headers
    rejected = await client.post("/v1/responses", json={"input": LONG * 20, "truncation": "auto"})
    assert rejected.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.asyncio(loop_scope="module")
async def test_input_tokens_count_includes_previous_response(client: httpx2.AsyncClient):
    first = (
        await client.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 16})
    ).json()
    body = {"input": "And?", "previous_response_id": first["id"]}
    counted = (await client.post("/v1/responses/input_tokens", json=body)).json()
    called = (await client.post("/v1/responses", json={**body, "max_output_tokens": 16})).json()
    assert (
        counted["input_tokens"] == called["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    )
