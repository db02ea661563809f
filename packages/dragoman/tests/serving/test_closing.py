"""`close_at_limit`: JSON that reaches max_tokens is valid, and the finish reason is
`length`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

JsonObject = dict[str, Any]
STORY: JsonObject = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 100},
        "parts": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["title", "parts"],
    "additionalProperties": False,
}
FORMAT: JsonObject = {"type": "json_schema", "json_schema": {"name": "story", "schema": STORY}}
MESSAGES: list[JsonObject] = [{"role": "user", "content": "Tell me a long story as JSON."}]
CLOSE: JsonObject = {"structured_outputs": {"close_at_limit": True}}
CUT = 48


@asynccontextmanager
async def serving(
    model: str = "tiny", *, by_default: bool = False
) -> AsyncGenerator[httpx2.AsyncClient]:
    settings = Settings(model=model, served_model_name=("m",))
    if model == "sim":
        settings = settings.replace(time_scale=100.0)
    models = build_models(settings, SystemClock())
    await models.start()
    app = build_asgi_app(models, options=ServingOptions(close_at_limit=by_default))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        yield client
    await models.stop()


async def chat(client: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "max_tokens": CUT,
        "response_format": FORMAT,
        "seed": 1,
        **fields,
    }
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("model", ["tiny", "sim"])
async def test_close_at_limit_returns_valid_json(model: str):
    async with serving(model) as client:
        for seed in range(4):
            answer = await chat(client, **CLOSE, seed=seed, temperature=1, n=2)
            for choice in answer.json()["choices"]:
                jsonschema_rs.validate(STORY, json.loads(choice["message"]["content"]))
                assert choice["finish_reason"] == "length"
            assert answer.json()["usage"]["completion_tokens"] <= 2 * CUT
        (choice,) = (await chat(client)).json()["choices"]
        with pytest.raises(json.JSONDecodeError):
            json.loads(choice["message"]["content"])


async def test_close_at_limit_as_server_default():
    async with serving(by_default=True) as client:
        json.loads((await chat(client)).json()["choices"][0]["message"]["content"])
        own = {"structured_outputs": {"close_at_limit": False}}
        with pytest.raises(json.JSONDecodeError):
            json.loads((await chat(client, **own)).json()["choices"][0]["message"]["content"])
        text = {"format": {"type": "json_schema", "name": "story", "schema": STORY}}
        body: JsonObject = {"model": "m", "input": MESSAGES, "max_output_tokens": CUT, "text": text}
        response = (await client.post("/v1/responses", json=body)).json()
        assert (response["status"], response["incomplete_details"]) == (
            "incomplete",
            {"reason": "max_output_tokens"},
        )
        json.loads(response["output"][0]["content"][0]["text"])
        body = {
            "model": "m",
            "messages": MESSAGES,
            "max_tokens": CUT,
            "output_config": {"format": {"type": "json_schema", "schema": STORY}},
        }
        message = (await client.post("/v1/messages", json=body)).json()
        assert message["stop_reason"] == "max_tokens"
        json.loads(message["content"][0]["text"])


async def test_close_at_limit_closes_tool_call_and_reasoning():
    call: JsonObject = {"type": "function", "function": {"name": "tell", "parameters": STORY}}
    async with serving() as client:
        answer = await chat(
            client,
            **CLOSE,
            response_format=None,
            tools=[call],
            tool_choice="required",
            max_tokens=60,
        )
        (choice,) = answer.json()["choices"]
        (tool_call,) = choice["message"]["tool_calls"]
        jsonschema_rs.validate(STORY, json.loads(tool_call["function"]["arguments"]))
        assert choice["finish_reason"] == "length"
        answer = await chat(client, **CLOSE, reasoning_effort="high", max_tokens=52)
        jsonschema_rs.validate(STORY, json.loads(answer.json()["choices"][0]["message"]["content"]))


async def test_close_at_limit_logprobs_and_stream_include_added_tokens():
    async with serving() as client:
        answer = (await chat(client, **CLOSE, logprobs=True)).json()["choices"][0]
        tokens = [token["token"] for token in answer["logprobs"]["content"]]
        assert "".join(tokens) == answer["message"]["content"]
        streamed = await chat(client, **CLOSE, stream=True)
        chunks = [
            json.loads(line[6:])
            for line in streamed.text.splitlines()
            if line.startswith("data: {")
        ]
        assert (
            "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
            == answer["message"]["content"]
        )
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_close_at_limit_unsupported_engine_warns():
    async with serving("scripted") as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "[[say {}]]"}], **CLOSE}
        answer = await client.post("/v1/chat/completions", json=body)
        assert "close_at_limit" in answer.headers["x-dragoman-warnings"]
