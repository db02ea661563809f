"""Anthropic Messages on a complete server, with the official SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import anthropic
import httpx2
import pytest
import pytest_asyncio
from tests.serving.harness import ServerHarness, build_server

from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"name": "add", "input_schema": {"type": "object"}}]
ASK = {"model": "m", "max_tokens": 50, "messages": HI}


def sdk(server: ServerHarness) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="none", base_url="http://localhost", http_client=server.http(), max_retries=0
    )


async def test_message_returns_thinking_text_and_tool_use() -> None:
    entry = ScriptEntry((Think("Hmm."), Say("I add."), CallTool("add", '{"a": 1}')))
    message = await sdk(build_server(entry)).messages.create(
        model="m", max_tokens=50, messages=HI, tools=TOOLS
    )
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.stop_reason == "tool_use"


async def test_message_stream_thinking_signature_equals_full_response() -> None:
    server = build_server(ScriptEntry((Think("Hmm."), Say("Hello")), repeat=True))
    async with sdk(server).messages.stream(model="m", max_tokens=50, messages=HI) as stream:
        streamed = await stream.get_final_message()
    full = await sdk(server).messages.create(model="m", max_tokens=50, messages=HI)
    assert full.content[0].type == "thinking"
    assert full.content[0].signature
    assert streamed.content[0] == full.content[0]


@pytest.mark.parametrize(
    ("path", "method", "status", "kind"),
    [
        ("/v1/messages", "GET", 405, "invalid_request_error"),
        ("/v1/messages/nope", "POST", 404, "not_found_error"),
        ("/v1/messages", "POST", 400, "invalid_request_error"),
    ],
)
async def test_messages_route_errors_use_anthropic_envelope(
    path: str, method: str, status: int, kind: str
) -> None:
    async with build_server().http() as client:
        answer = await client.request(
            method, path, content=b"{", headers={"content-type": "application/json"}
        )
    assert answer.status_code == status
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == answer.headers["request-id"]


async def test_messages_missing_key_uses_anthropic_envelope() -> None:
    answer = await build_server(options=ServingOptions(api_key=("k",))).post("/v1/messages", ASK)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


async def test_messages_overload_returns_529() -> None:
    server = build_server(ScriptEntry((Fail(503, "full"),)))
    answer = await server.post("/v1/messages", ASK)
    assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")


async def test_message_stream_failure_sends_error_event() -> None:
    server = build_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke"))))
    answer = await server.post("/v1/messages", {**ASK, "stream": True})
    assert answer.text.strip().split("\n\n")[-1].startswith("event: error\n")


@pytest_asyncio.fixture
async def embedded() -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(max_model_len=2048), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


async def test_message_count_tokens_equals_usage(embedded: httpx2.AsyncClient) -> None:
    body = {"messages": HI, "system": "Answer with one word.", "tools": TOOLS}
    counted = await embedded.post("/v1/messages/count_tokens", json=body)
    answer = await embedded.post("/v1/messages", json={**body, "max_tokens": 1})
    usage = answer.json()["usage"]
    assert counted.json()["input_tokens"] == sum(
        usage[name]
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )


EDITED: Any = {
    "model": "tiny",
    "messages": [
        *HI,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is 1. " * 20}
            ],
        },
    ],
    "tools": TOOLS,
    "betas": ["context-management-2025-06-27"],
    "context_management": {
        "edits": [
            {"type": "clear_thinking_20251015"},
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "tool_uses", "value": 0},
                "keep": {"type": "tool_uses", "value": 0},
            },
        ]
    },
}


async def test_message_context_edits_reported_and_counted(
    embedded: httpx2.AsyncClient,
) -> None:
    client: Any = anthropic.AsyncAnthropic(
        api_key="none", base_url="http://localhost", http_client=embedded
    )
    counted = await client.beta.messages.count_tokens(**EDITED)
    uncut = await client.beta.messages.count_tokens(
        **EDITED | {"context_management": {"edits": []}}
    )
    full = await client.beta.messages.create(**EDITED, max_tokens=5)
    async with client.beta.messages.stream(**EDITED, max_tokens=5) as stream:
        streamed = await stream.get_final_message()
    assert full.context_management == streamed.context_management
    (edit,) = full.context_management.applied_edits
    assert edit.type == "clear_tool_uses_20250919"
    assert edit.cleared_tool_uses == 1
    assert edit.cleared_input_tokens == uncut.input_tokens - counted.input_tokens > 0
    for count in (counted, uncut):
        assert count.context_management.original_input_tokens == uncut.input_tokens
    usage = full.usage
    cached_tokens = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == usage.input_tokens + cached_tokens


async def test_message_prompt_tokens_equal_chat_completion(
    embedded: httpx2.AsyncClient,
) -> None:
    chat = {"messages": [{"role": "system", "content": "Be brief."}, *HI], "max_tokens": 1}
    messages = {"system": "Be brief.", "messages": HI, "max_tokens": 1}
    one = await embedded.post("/v1/chat/completions", json=chat)
    other = await embedded.post("/v1/messages", json=messages)
    usage = other.json()["usage"]
    assert one.json()["usage"]["prompt_tokens"] == sum(
        usage[name]
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    )


async def test_message_tool_use_id_has_anthropic_prefix(embedded: httpx2.AsyncClient) -> None:
    choice = {"type": "tool", "name": "add"}
    body = {
        "messages": HI,
        "tools": TOOLS,
        "tool_choice": choice,
        "max_tokens": 200,
        "temperature": 0,
    }
    answer = (await embedded.post("/v1/messages", json=body)).json()
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert calls
    assert all(call["id"].startswith("toolu_") for call in calls)
