"""Counting tokens without an answer: the count equals the usage, and no parameter is
silently ignored.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.serving.background_server import run_background_server
from tests.serving.harness import build_server

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

HI = [{"role": "user", "content": "What is the capital of Japan?"}]
TOOL: dict[str, Any] = {"name": "f", "description": "Finds.", "input_schema": {"type": "object"}}


async def test_count_tokens_scripted_engine_equals_usage() -> None:
    body = {"model": "m", "messages": HI, "tools": [TOOL], "system": "Be brief."}
    async with run_background_server() as server:
        counted = await server.post("/v1/messages/count_tokens", body)
        answer = await server.post("/v1/messages", {**body, "max_tokens": 9})
        assert counted.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}
        counted = await server.post("/v1/responses/input_tokens", {"input": HI})
        answer = await server.post("/v1/responses", {"input": HI})
        assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"] > 0
        first = answer.json()["id"]
        longer = await server.post(
            "/v1/responses/input_tokens", {"input": HI, "previous_response_id": first}
        )
        assert longer.json()["input_tokens"] > 2 * counted.json()["input_tokens"]
        assert server.engine.num_requests == 2


async def test_count_tokens_prompt_over_context_is_counted() -> None:
    async with run_background_server(engine_options={"max_model_len": 16}) as server:
        body = {"model": "m", "messages": [{"role": "user", "content": "word " * 100}]}
        assert (await server.post("/v1/messages", {**body, "max_tokens": 9})).status_code == 400
        assert (await server.post("/v1/messages/count_tokens", body)).json()["input_tokens"] > 100


async def test_scripted_engine_max_model_len_fits_agent_prompt() -> None:
    models = build_models(Settings(model="scripted"), SystemClock())
    await models.start()
    model = await models.load_and_find("scripted")
    assert model.max_model_len == 200_000
    await models.stop()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses/input_tokens", {"input": HI, "personality": {}}),
        ("/v1/messages/count_tokens", {"model": "m", "messages": HI, "personality": {}}),
        ("/tokenize", {"prompt": "hi", "personality": {}}),
        ("/detokenize", {"tokens": [5], "personality": {}}),
    ],
)
async def test_count_tokens_unknown_field_warns_by_name(path: str, body: dict[str, Any]) -> None:
    answer = await build_server().post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-dragoman-warnings"] == "personality is ignored: unknown field"


@pytest.mark.parametrize("model", ["tiny", "sim"])
async def test_usage_cache_write_tokens_match_next_cached_tokens(model: str) -> None:
    models = build_models(Settings(model=model, served_model_name=("m",)), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:

        async def usage(path: str, **fields: Any) -> dict[str, Any]:
            answer = await client.post(path, json={"model": "m", **fields})
            assert answer.status_code == 200, answer.text
            return answer.json()["usage"]

        long = [{"role": "user", "content": "Tell me a long story about the sea. " * 9}]
        cold = await usage("/v1/messages", messages=long, max_tokens=1)
        warm = await usage("/v1/messages", messages=long, max_tokens=1)
        written = cold["cache_creation_input_tokens"]
        assert written > 50
        assert (cold["cache_read_input_tokens"], warm["cache_read_input_tokens"]) == (0, written)
        assert warm["cache_creation_input_tokens"] == 0
        total = written + cold["input_tokens"]
        assert warm["input_tokens"] + written == total
        other = [{"role": "user", "content": "Another " * 80}]
        details = (await usage("/v1/responses", input=other, max_output_tokens=16))[
            "input_tokens_details"
        ]
        assert details["cached_tokens"] < 32 < details["cache_write_tokens"]
        details = (await usage("/v1/chat/completions", messages=other, max_tokens=1))[
            "prompt_tokens_details"
        ]
        assert details["cached_tokens"] > 32
        assert details["cache_write_tokens"] == 0
    await models.stop()
