"""Counting without an answer: the scripted engine counts as its usage does; nothing is ignored in silence."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.launch import build_models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from tests.serving.house import house
from tests.serving.working import working

HI = [{"role": "user", "content": "What is the capital of Japan?"}]
TOOL: dict[str, Any] = {"name": "f", "description": "Finds.", "input_schema": {"type": "object"}}


async def test_the_scripted_engine_counts_what_its_usage_says() -> None:
    body = {"model": "m", "messages": HI, "tools": [TOOL], "system": "Be brief."}
    async with working() as server:
        counted = await server.post("/v1/messages/count_tokens", body)
        answer = await server.post("/v1/messages", {**body, "max_tokens": 9})
        assert counted.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}
        counted = await server.post("/v1/responses/input_tokens", {"input": HI})
        answer = await server.post("/v1/responses", {"input": HI})
        assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"] > 0
        first = answer.json()["id"]
        longer = await server.post("/v1/responses/input_tokens", {"input": HI, "previous_response_id": first})
        assert longer.json()["input_tokens"] > 2 * counted.json()["input_tokens"]
        assert server.engine.num_requests == 2


async def test_a_prompt_beyond_the_context_is_counted() -> None:
    async with working(engine={"max_model_len": 16}) as server:
        body = {"model": "m", "messages": [{"role": "user", "content": "word " * 100}]}
        assert (await server.post("/v1/messages", {**body, "max_tokens": 9})).status_code == 400
        assert (await server.post("/v1/messages/count_tokens", body)).json()["input_tokens"] > 100


async def test_the_scripted_engine_has_room_for_an_agents_prompt() -> None:
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
async def test_an_unknown_field_is_named(path: str, body: dict[str, Any]) -> None:
    answer = await house().post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-dragoman-warnings"] == "personality is ignored: unknown field"
