"""Calls in the syntax of other families than the embedded model's: enforced and parsed,
or rejected.
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
from dragoman.settings import Settings

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "maximum": 9},
    },
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": CITY, "strict": True},
}
CLOCK = {"type": "function", "function": {"name": "get_time"}}
ONE_A_SHAPE = [
    "llama3_json",
    "mistral_json",
    "deepseek_v31",
    "kimi_k2",
    "qwen3_coder",
    "glm45",
    "pythonic",
    "gemma4",
    "openai",
]


@asynccontextmanager
async def serve(tools: str, reasoning: str = "none") -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(
        Settings(max_model_len=2048, tool_call_parser=tools, reasoning_parser=reasoning),
        SystemClock(),
    )
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await models.stop()


async def ask_weather(client: httpx2.AsyncClient, **body: Any) -> httpx2.Response:
    defaults = {
        "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
        "max_tokens": 200,
        "seed": 5,
    }
    return await client.post("/v1/chat/completions", json={**defaults, **body})


@pytest.mark.parametrize("name", ONE_A_SHAPE)
async def test_named_tool_choice_returns_parsed_tool_call(name: str) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    async with serve(name, "openai_gptoss" if name == "openai" else "none") as client:
        answer = await ask_weather(client, tools=[WEATHER, CLOCK], tool_choice=choice)
    assert answer.status_code == 200, answer.text
    (only_choice,) = answer.json()["choices"]
    (call,) = only_choice["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    jsonschema_rs.validate(CITY, json.loads(call["function"]["arguments"]))
    assert not only_choice["message"]["content"]


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic", "llama3_json", "openai"])
async def test_tool_choice_auto_allows_text(name: str) -> None:
    async with serve(name, "openai_gptoss" if name == "openai" else "none") as client:
        answer = await ask_weather(client, tools=[WEATHER, CLOCK], temperature=1.0)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["content"] or message.get("tool_calls") or message.get("reasoning")


ANY_OF: dict[str, Any] = {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}


async def test_unenforceable_tool_schema_rejected_or_warned() -> None:
    """Syntaxes with separate arguments cannot enforce a schema's rules about all
    arguments together.
    """
    strict = {"type": "function", "function": {"name": "f", "parameters": ANY_OF, "strict": True}}
    loose = {"type": "function", "function": {"name": "f", "parameters": ANY_OF}}
    async with serve("qwen3_coder") as client:
        rejected = await ask_weather(client, tools=[strict], tool_choice="required")
        warned = await ask_weather(client, tools=[loose], tool_choice="required", max_tokens=20)
    assert rejected.status_code == 400
    assert rejected.json()["error"]["param"] == "tools[0].function.parameters"
    assert "anyOf" in rejected.json()["error"]["message"]
    assert warned.status_code == 200
    assert "anyOf" in warned.headers["x-dragoman-warnings"]


FORCED = [
    ("/v1/chat/completions", {"tools": [WEATHER], "tool_choice": "required"}),
    (
        "/v1/chat/completions",
        {
            "tools": [WEATHER, CLOCK],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        },
    ),
    (
        "/v1/messages",
        {"tools": [{"name": "get_weather", "input_schema": CITY}], "tool_choice": {"type": "any"}},
    ),
    (
        "/v1/responses",
        {
            "tools": [{"type": "function", "name": "get_weather", "parameters": CITY}],
            "tool_choice": "required",
        },
    ),
]


def find_arguments(answer: dict[str, Any]) -> Any:
    """Return the arguments of the first call of a response in any of the three
    dialects.
    """
    if "choices" in answer:
        return json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    if "content" in answer:
        return next(block["input"] for block in answer["content"] if block["type"] == "tool_use")
    return json.loads(
        next(item["arguments"] for item in answer["output"] if item["type"] == "function_call")
    )


@pytest.mark.parametrize(("path", "fields"), FORCED)
async def test_required_tool_call_enforced_without_known_format(
    path: str, fields: dict[str, Any]
) -> None:
    conversation = [{"role": "user", "content": "How is the weather in Rome?"}]
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    async with serve("none") as client:
        response = await client.post(
            path,
            json={
                "input" if path == "/v1/responses" else "messages": conversation,
                limit: 200,
                **fields,
            },
        )
    assert response.status_code == 200, response.text
    jsonschema_rs.validate(CITY, find_arguments(response.json()))


async def test_tools_without_known_format_warn() -> None:
    async with serve("none") as client:
        response = await ask_weather(client, tools=[WEATHER], max_tokens=8)
    assert response.status_code == 200
    assert "--tool-call-parser" in response.headers["x-dragoman-warnings"]


async def test_models_list_tools_capability_only_with_parser() -> None:
    for name, listed in (("none", False), ("hermes", True)):
        async with serve(name) as client:
            card = (await client.get("/v1/models")).json()["data"][0]
        assert ("tools" in card["dragoman"]["capabilities"]) == listed


@pytest.mark.parametrize("parser", ["hermes", "qwen3_coder", "pythonic", "mistral"])
@pytest.mark.parametrize(
    ("parameters", "seed"), [(None, 0), ({"type": "object", "properties": {}}, 1)]
)
async def test_tool_without_parameters_called_with_empty_arguments(
    parser: str, parameters: Any, seed: int
) -> None:
    """`f(**arguments)` fails in the client if the grammar allows undeclared members."""
    tool = {"type": "function", "function": {"name": "get_time", "parameters": parameters}}
    async with serve(parser) as client:
        answer = await ask_weather(
            client, tools=[tool], tool_choice="required", temperature=1.5, seed=seed
        )
    assert answer.status_code == 200, answer.text
    for call in answer.json()["choices"][0]["message"]["tool_calls"]:
        assert json.loads(call["function"]["arguments"]) == {}
