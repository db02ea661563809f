"""Responses of a complete server, read by the official SDK: streamed and not streamed,
rejections, failures.
"""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam
from tests.serving.harness import ServerHarness, build_server

from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think
from dragoman.serving.cors import CorsPolicy
from dragoman.serving.serving_options import ServingOptions

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
HELLO = ScriptEntry((Say("Hello there"),), repeat=True)


async def stream(server: ServerHarness, **body: Any) -> list[ChatCompletionChunk]:
    chunks = await server.openai().chat.completions.create(
        model="m", messages=HI, stream=True, **body
    )
    return [chunk async for chunk in chunks]


async def test_chat_completion_returns_text_and_usage() -> None:
    reply = await build_server(HELLO).openai().chat.completions.create(model="m", messages=HI)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (
        "Hello there",
        "stop",
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 1


async def test_chat_stream_returns_text_and_usage() -> None:
    chunks = await stream(build_server(HELLO), stream_options={"include_usage": True})
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "Hello there"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


async def test_chat_completion_n_returns_all_choices() -> None:
    reply = await build_server(HELLO).openai().chat.completions.create(model="m", messages=HI, n=3)
    assert [(c.index, c.message.content) for c in reply.choices] == [
        (i, "Hello there") for i in range(3)
    ]


async def test_chat_completion_separates_reasoning_and_tool_calls() -> None:
    tools: Any = [
        {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    ]
    entry = ScriptEntry((Think("Hmm."), Say("I add."), CallTool("add", '{"a": 1}')))
    reply = (
        await build_server(entry)
        .openai()
        .chat.completions.create(model="m", messages=HI, tools=tools)
    )
    message = reply.choices[0].message
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "Hmm."
    assert message.content == "I add."
    assert message.tool_calls is not None
    assert message.tool_calls[0].type == "function"
    assert message.tool_calls[0].function.name == "add"
    assert reply.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_stop_string_ends_text(streamed: bool) -> None:
    server = build_server(HELLO, options=ServingOptions())
    ask: dict[str, Any] = {"model": "m", "messages": HI, "stop": ["there"], "stream": streamed}
    answer = await server.post("/v1/chat/completions", ask)
    assert "Hello " in answer.text or '"Hello"' in answer.text
    assert "there" not in answer.text


@pytest.mark.parametrize("streamed", [False, True])
async def test_engine_rejection_before_stream_returns_400(streamed: bool) -> None:
    server = build_server(ScriptEntry((Fail(400, "cannot"),)))
    with pytest.raises(openai.BadRequestError, match="cannot"):
        await server.openai().chat.completions.create(model="m", messages=HI, stream=streamed)


@pytest.mark.parametrize("streamed", [False, True])
async def test_engine_rejection_has_cors_headers(streamed: bool) -> None:
    origin = "https://app.example"
    options = ServingOptions(cors=CorsPolicy([origin]))
    server = build_server(ScriptEntry((Fail(400, "cannot"),)), options=options)
    ask = {"model": "m", "messages": HI, "stream": streamed}
    answer = await server.post("/v1/chat/completions", ask, {"origin": origin})
    assert answer.status_code == 400
    assert answer.headers["access-control-allow-origin"] == origin


async def test_stream_failure_sends_error_without_done() -> None:
    server = build_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke"))))
    answer = await server.post(
        "/v1/chat/completions", {"model": "m", "messages": HI, "stream": True}
    )
    last = answer.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "the engine broke"
    with pytest.raises(openai.APIError, match="the engine broke"):
        await stream(build_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke")))))


async def test_engine_failure_without_stream_returns_5xx() -> None:
    server = build_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke"))), HELLO)
    with pytest.raises(openai.InternalServerError, match="the engine broke"):
        await server.openai().chat.completions.create(model="m", messages=HI)
    reply = await server.openai().chat.completions.create(model="m", messages=HI)
    assert reply.choices[0].message.content == "Hello there"


async def test_completion_multiple_prompts_keep_order() -> None:
    reply = (
        await build_server(HELLO)
        .openai()
        .completions.create(model="m", prompt=["a", "b", "c"], n=2)
    )
    assert [choice.index for choice in reply.choices] == list(range(6))
    assert {choice.text for choice in reply.choices} == {"Hello there"}


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_completion_sets_response_headers(streamed: bool) -> None:
    answer = await build_server(HELLO).post(
        "/v1/chat/completions",
        {"model": "m", "messages": HI, "stream": streamed},
        {"x-request-id": "mine-1"},
    )
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["openai-version"] == "2020-10-01"
    assert "openai-processing-ms" in answer.headers
    assert answer.headers["content-type"].startswith(
        "text/event-stream" if streamed else "application/json"
    )


async def test_request_id_invalid_is_replaced() -> None:
    answer = await build_server(HELLO).post(
        "/v1/chat/completions", {"model": "m", "messages": HI}, {"x-request-id": "a b\t<script>"}
    )
    assert answer.headers["x-request-id"].startswith("req_")


async def test_ignored_field_named_in_warning_header() -> None:
    ask = {"model": "m", "messages": HI, "frobnicate": 1, "min_tokens": 3}
    answer = await build_server(HELLO).post("/v1/chat/completions", ask)
    assert answer.status_code == 200
    assert "frobnicate" in answer.headers["x-dragoman-warnings"]
    assert "min_tokens" in answer.headers["x-dragoman-warnings"]


async def test_strict_mode_rejects_unsupported_tool() -> None:
    server = build_server(HELLO, options=ServingOptions(strict=True))
    ask: dict[str, Any] = {"model": "m", "messages": HI, "tools": [{"type": "web_search"}]}
    assert (await server.post("/v1/chat/completions", ask)).status_code == 400
    assert server.engine.num_requests == 0


async def test_large_body_over_context_returns_context_error() -> None:
    ask: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}] * 10_000,
        "max_tokens": 1,
    }
    answer = await build_server(HELLO, max_model_len=4096).post("/v1/chat/completions", ask)
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("extra", [{"frobnicate": 1}, {"min_tokens": 3}])
async def test_strict_mode_rejects_ignored_field_before_engine_call(
    extra: dict[str, int],
) -> None:
    server = build_server(HELLO, options=ServingOptions(strict=True))
    answer = await server.post("/v1/chat/completions", {"model": "m", "messages": HI, **extra})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(extra))
    assert server.engine.num_requests == 0
