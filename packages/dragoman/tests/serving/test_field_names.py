"""A rejection or a warning names the field that the client sent, in each dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {"messages": MESSAGES, "max_completion_tokens": 2},
)
RESPONSES: tuple[str, dict[str, Any]] = ("/v1/responses", {"input": "Hi", "max_output_tokens": 16})
ANTHROPIC: tuple[str, dict[str, Any]] = (
    "/v1/messages",
    {"model": "tiny", "messages": MESSAGES, "max_tokens": 2},
)
SGLANG: tuple[str, dict[str, Any]] = ("/generate", {"text": "Hi"})
TGI: tuple[str, dict[str, Any]] = ("/generate", {"inputs": "Hi"})
TOKENS: tuple[str, dict[str, Any]] = ("/inference/v1/generate", {"token_ids": [5]})
NOT: dict[str, Any] = {"not": {}}
SCHEMA: dict[str, Any] = {"name": "x", "strict": True, "schema": NOT}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(max_model_len=1024), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http_client:
        yield http_client
    await models.stop()


async def post(
    client: httpx2.AsyncClient, entry: tuple[str, dict[str, Any]], fields: dict[str, Any]
) -> httpx2.Response:
    path, body = entry
    headers = {"anthropic-version": "2023-06-01"} if path == "/v1/messages" else {}
    return await client.post(path, json={**body, **fields}, headers=headers)


REFUSED: list[tuple[tuple[str, dict[str, Any]], dict[str, Any], str]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, "response_format"),
    (CHAT, {"guided_json": NOT}, "guided_json"),
    (CHAT, {"structured_outputs": {"json": NOT}}, "structured_outputs.json"),
    (CHAT, {"guided_regex": "("}, "guided_regex"),
    (RESPONSES, {"max_tokens": 5}, "max_tokens"),
    (RESPONSES, {"response_format": {"type": "json_object"}}, "response_format"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", **SCHEMA}}}, "text.format"),
    (RESPONSES, {"structured_outputs": {"json": NOT}}, "structured_outputs.json"),
    (RESPONSES, {"input": "Hi " * 2000}, "input"),
    (
        RESPONSES,
        {
            "tools": [
                {
                    "type": "function",
                    "name": "f",
                    "strict": True,
                    "parameters": {"type": "object", **NOT},
                }
            ]
        },
        "tools[0].parameters",
    ),
    (SGLANG, {"lora_path": "nowhere"}, "lora_path"),
    (SGLANG, {"model": "nowhere"}, "model"),
    (SGLANG, {"text": "Hi " * 2000}, "text"),
    (SGLANG, {"input_ids": [5] * 2000, "text": None}, "input_ids"),
    (SGLANG, {"sampling_params": {"regex": "("}}, "sampling_params.regex"),
    (TOKENS, {"token_ids": [5] * 2000}, "token_ids"),
    (
        TOKENS,
        {"sampling_params": {"structured_outputs": {"regex": "("}}},
        "sampling_params.structured_outputs.regex",
    ),
]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("entry", "fields", "param"), REFUSED)
async def test_openai_error_param_names_sent_field(
    client: httpx2.AsyncClient,
    entry: tuple[str, dict[str, Any]],
    fields: dict[str, Any],
    param: str,
) -> None:
    answer = await post(client, entry, fields)
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (CHAT, "max_completion_tokens=2"),
        (("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}), "max_tokens=2"),
        (RESPONSES, "max_output_tokens=16"),
        (ANTHROPIC, "max_tokens=2"),
    ],
)
async def test_contradicting_fields_error_names_both(
    client: httpx2.AsyncClient, entry: tuple[str, dict[str, Any]], name: str
) -> None:
    answer = await post(client, entry, {"min_tokens": 17})
    assert answer.status_code == 400
    assert f" {name}." in answer.json()["error"]["message"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"output_format": {"type": "json_schema", "schema": NOT}}, "output_format"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": NOT}}},
            "output_config.format",
        ),
        ({"structured_outputs": {"json": NOT}}, "structured_outputs.json"),
        (
            {"tools": [{"name": "f", "strict": True, "input_schema": {"type": "object", **NOT}}]},
            "tools.0.input_schema",
        ),
    ],
)
async def test_anthropic_error_message_starts_with_sent_field(
    client: httpx2.AsyncClient, fields: dict[str, Any], name: str
) -> None:
    answer = await post(client, ANTHROPIC, fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{name}: ")


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"parameters": {"adapter_id": "nowhere"}}, "parameters.adapter_id"),
        ({"inputs": "Hi " * 2000}, "inputs"),
        ({"parameters": {"grammar": {"type": "regex", "value": "("}}}, "parameters.grammar"),
    ],
)
async def test_tgi_error_message_names_sent_field(
    client: httpx2.AsyncClient, fields: dict[str, Any], name: str
) -> None:
    answer = await post(client, TGI, fields)
    assert answer.status_code in (404, 422), answer.text
    assert name in answer.json()["error"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("entry", "fields", "name"),
    [
        (CHAT, {"max_completion_tokens": 10**6, "stop": "l"}, "max_completion_tokens"),
        (
            ("/v1/chat/completions", {"messages": MESSAGES}),
            {"max_tokens": 10**6, "stop": "l"},
            "max_tokens",
        ),
        (RESPONSES, {"max_output_tokens": 10**6, "stop": "l"}, "max_output_tokens"),
        (ANTHROPIC, {"max_tokens": 10**6, "stop_sequences": ["l"]}, "max_tokens"),
        (
            SGLANG,
            {"sampling_params": {"max_new_tokens": 10**6, "stop": "e"}},
            "sampling_params.max_new_tokens",
        ),
        (
            TGI,
            {"parameters": {"max_new_tokens": 10**6, "stop": ["e"]}},
            "parameters.max_new_tokens",
        ),
        (
            TOKENS,
            {"sampling_params": {"max_tokens": 10**6, "stop": "e"}},
            "sampling_params.max_tokens",
        ),
    ],
)
async def test_warning_names_sent_field(
    client: httpx2.AsyncClient, entry: tuple[str, dict[str, Any]], fields: dict[str, Any], name: str
) -> None:
    answer = await post(client, entry, fields)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-dragoman-warnings"].startswith(f"{name} is reduced from 1000000 to ")


@pytest.mark.asyncio(loop_scope="module")
async def test_warning_names_legacy_field(client: httpx2.AsyncClient) -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    answer = await post(client, CHAT, {"functions": [{"name": "f", "parameters": unique}]})
    assert answer.headers["x-dragoman-warnings"].startswith(
        "functions[0].parameters is not fully enforced"
    )


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
ONE_CALL: dict[str, Any] = {
    "tools": [{"name": "f", "input_schema": {}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
}


@pytest.mark.parametrize(
    ("entry", "fields", "name"),
    [
        (CHAT, {"tools": [TOOL], "parallel_tool_calls": False}, ""),
        (ANTHROPIC, ONE_CALL, "tool_choice.disable_parallel_tool_use: "),
    ],
)
async def test_parallel_tool_calls_error_names_field_of_dialect(
    entry: tuple[str, dict[str, Any]], fields: dict[str, Any], name: str
) -> None:
    models = build_models(Settings(model="scripted"), SystemClock())
    await models.start()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(build_asgi_app(models)), base_url="http://localhost"
    ) as http:
        messages = [{"role": "user", "content": "[[tool f {}]] [[tool f {}]]"}]
        answer = await post(http, entry, {"model": "scripted", "messages": messages, **fields})
    await models.stop()
    field = name.removesuffix(": ") or "parallel_tool_calls"
    expected = f"{name}The script makes 2 tool calls at once, but {field} allows only one."
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, expected)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (SGLANG, "sampling_params"),
        (TOKENS, "sampling_params"),
        (TGI, "parameters"),
        (("/api/generate", {"model": "tiny", "prompt": "Hi"}), "options"),
    ],
)
async def test_list_instead_of_object_error_names_field(
    client: httpx2.AsyncClient, entry: tuple[str, dict[str, Any]], name: str
) -> None:
    answer = await post(client, entry, {name: []})
    assert answer.status_code in (400, 422)
    assert f"Invalid type for '{name}': expected an object." in answer.text


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # noqa: E501


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("path", "body", "begin"),
    [
        # A message that contains the name is not prefixed with it.
        (
            "/api/generate",
            {"prompt": "Hi", "images": [PIXEL]},
            "This model's engine does not support images.",
        ),
        (
            "/api/generate",
            {"prompt": "Hi " * 2000},
            "This model's maximum context length is 1024 tokens.",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "images": [PIXEL]}]},
            "messages[0].images: This model's engine",
        ),
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "Hi " * 2000}]},
            "messages: This model's maximum",
        ),
    ],
)
async def test_ollama_error_message_starts_with_sent_field(
    client: httpx2.AsyncClient, path: str, body: dict[str, Any], begin: str
) -> None:
    answer = await client.post(path, json={"model": "tiny", **body})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(begin)
