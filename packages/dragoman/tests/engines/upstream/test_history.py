"""Past calls, results and reasoning reach every kind of upstream, or are reported."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.engines.upstream.relays import VLLM
from tests.engines.upstream.test_warnings import CHUNKS, NAME, relaying, streaming

from dragoman.engines.upstream import KINDS
from dragoman.serving.serving_options import ServingOptions


def render_stream(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


TEXT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}
STREAMS = {
    "anthropic": render_stream(
        {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "A"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ),
    "responses": render_stream(
        {"type": "response.created", "response": {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**TEXT, "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "A"},
        {"type": "response.output_item.done", "output_index": 0, "item": TEXT},
        {
            "type": "response.completed",
            "response": {
                "status": "completed",
                "output": [TEXT],
                "usage": {"input_tokens": 1, "output_tokens": 1},
            },
        },
    ),
    "gemini": b"data: %b\n\n"
    % json.dumps(
        {
            "candidates": [
                {"content": {"role": "model", "parts": [{"text": "A"}]}, "finishReason": "STOP"}
            ],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1},
        }
    ).encode(),
}
GENERATING = [name for name, kind in KINDS.items() if kind.generates]
USER = {"role": "user", "content": "hi"}
STOP = {"role": "user", "content": "stop that"}


def chat_call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": f"f{id}", "arguments": "{}"}}


def chat_output(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": f"out {id}"}


def item_call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": f"f{id}", "arguments": "{}"}


def item_output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": f"out {id}"}


def block_call(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": f"f{id}", "input": {}}


def block_output(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": f"out {id}"}


TEXT_BLOCK = {"type": "text", "text": "stop that"}
CHAT_CALLS = {"role": "assistant", "tool_calls": [chat_call("1"), chat_call("2")]}
BLOCK_CALLS = {"role": "assistant", "content": [block_call("1"), block_call("2")]}
ITEM_CALLS = [item_call("1"), item_call("2")]


def ollama(*messages: dict[str, Any]) -> dict[str, Any]:
    calls: list[dict[str, Any]] = [{"function": {"name": f"f{id}", "arguments": {}}} for id in "12"]
    return {"messages": [USER, {"role": "assistant", "tool_calls": calls}, *messages]}


def ollama_output(id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_name": f"f{id}", "content": f"out {id}"}


HISTORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat, before the results": (
        "/v1/chat/completions",
        {"messages": [USER, CHAT_CALLS, STOP, chat_output("1"), chat_output("2")]},
    ),
    "chat, between the results": (
        "/v1/chat/completions",
        {"messages": [USER, CHAT_CALLS, chat_output("1"), STOP, chat_output("2")]},
    ),
    "responses, before the results": (
        "/v1/responses",
        {"input": [USER, *ITEM_CALLS, STOP, item_output("1"), item_output("2")]},
    ),
    "responses, between the results": (
        "/v1/responses",
        {"input": [USER, *ITEM_CALLS, item_output("1"), STOP, item_output("2")]},
    ),
    "messages, before the results": (
        "/v1/messages",
        {
            "messages": [
                USER,
                BLOCK_CALLS,
                {"role": "user", "content": [TEXT_BLOCK, block_output("1"), block_output("2")]},
            ]
        },
    ),
    "messages, between the results": (
        "/v1/messages",
        {
            "messages": [
                USER,
                BLOCK_CALLS,
                {"role": "user", "content": [block_output("1"), TEXT_BLOCK, block_output("2")]},
            ]
        },
    ),
    "ollama, before the results": (
        "/api/chat",
        ollama(STOP, ollama_output("1"), ollama_output("2")),
    ),
    "ollama, between the results": (
        "/api/chat",
        ollama(ollama_output("1"), STOP, ollama_output("2")),
    ),
}


def describe_block(block: dict[str, Any]) -> str:
    match block.get("type"):
        case "tool_use":
            return "call"
        case "tool_result":
            return block["content"][0]["text"]
        case _:
            return block["text"]


def describe_part(part: dict[str, Any]) -> str:
    if "functionCall" in part:
        return "call"
    return (
        part["functionResponse"]["response"]["output"]
        if "functionResponse" in part
        else part["text"]
    )


def list_steps(body: dict[str, Any]) -> list[Any]:
    """List the calls, results and texts that an upstream receives, in their order."""
    steps: list[Any] = []
    for content in body.get("contents", ()):
        steps += map(describe_part, content["parts"])
    for message in body.get("messages", body.get("input", [])):
        kind = message.get("type", "message")
        if kind == "function_call":
            steps.append("call")
        elif kind == "function_call_output":
            steps.append(message["output"])
        elif message["role"] == "tool":
            steps.append(message["content"])
        else:
            content: Any = message["content"] or []
            if isinstance(content, str):
                content = [{"text": content}]
            steps += map(describe_block, content)
            steps += ["call" for _ in message.get("tool_calls", ())]
    return steps


async def forward(
    path: str, body: dict[str, Any], kind: str, options: ServingOptions = VLLM
) -> tuple[httpx2.Response, dict[str, Any]]:
    """Return the answer, and the body that the upstream received; empty if none."""
    received: dict[str, Any] = {}

    def handle(request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "POST":
            received.update(json.loads(request.content))
        return streaming(STREAMS.get(kind, CHUNKS))(request)

    async with relaying(handle, options, kind) as client:
        answer = await client.post(path, json={"model": "m", "max_tokens": 2048, **body})
    return answer, received


@pytest.mark.parametrize("kind", GENERATING)
@pytest.mark.parametrize("history", HISTORIES)
async def test_results_follow_their_calls_at_every_upstream(history: str, kind: str) -> None:
    path, body = HISTORIES[history]
    if path == "/v1/responses":
        body = {**body, "max_tokens": None, "store": False}
    _, received = await forward(path, body, kind)
    assert list_steps(received) == ["hi", "call", "call", "out 1", "out 2", "stop that"]


REASONING: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "messages": [
                USER,
                {"role": "assistant", "content": "A", "reasoning_content": "Hm"},
                USER,
            ]
        },
    ),
    "chat details": (
        "/v1/chat/completions",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": "A",
                    "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}],
                },
                USER,
            ]
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "max_tokens": None,
            "store": False,
            "input": [
                USER,
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]},
                {"role": "assistant", "content": "A"},
                USER,
            ],
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": ""},
                        {"type": "text", "text": "A"},
                    ],
                },
                USER,
            ]
        },
    ),
    "ollama": (
        "/api/chat",
        {"messages": [USER, {"role": "assistant", "content": "A", "thinking": "Hm"}, USER]},
    ),
}


@pytest.mark.parametrize("kind", GENERATING)
@pytest.mark.parametrize("dialect", REASONING)
async def test_past_reasoning_is_forwarded_or_reported(dialect: str, kind: str) -> None:
    path, body = REASONING[dialect]
    answer, received = await forward(path, body, kind)
    is_forwarded = '"Hm"' in json.dumps(received)
    is_reported = "reasoning" in answer.headers.get(NAME, "")
    assert is_forwarded != is_reported


BUDGETED = {
    "messages": [USER],
    "max_tokens": 9_000,
    "thinking": {"type": "enabled", "budget_tokens": 8_000},
}


@pytest.mark.parametrize("kind", GENERATING)
async def test_thinking_budget_is_forwarded_or_becomes_effort(kind: str) -> None:
    answer, received = await forward("/v1/messages", BUDGETED, kind)
    thinking = received.get("thinking", {})
    config = received.get("generationConfig", {}).get("thinkingConfig", {})
    budgets = (
        received.get("thinking_token_budget"),
        thinking.get("budget_tokens"),
        config.get("thinkingBudget"),
    )
    if 8_000 in budgets:
        assert NAME not in answer.headers
        return
    effort = received.get("reasoning_effort", received.get("reasoning", {}).get("effort"))
    assert effort == "medium"
    assert "thinking.budget_tokens is ignored" in answer.headers[NAME]
    assert answer.headers[NAME].endswith("the reasoning effort is medium")


@pytest.mark.parametrize(
    ("budget", "effort"), [(1_024, "low"), (10_000, "medium"), (31_999, "high")]
)
async def test_larger_thinking_budget_becomes_higher_effort(budget: int, effort: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    body = {**BUDGETED, "max_tokens": 40_000, "thinking": thinking}
    _, received = await forward("/v1/messages", body, "openai")
    assert received["reasoning_effort"] == effort
    chosen = {**body, "output_config": {"effort": "max"}}
    _, received = await forward("/v1/messages", chosen, "openai")
    assert received["reasoning_effort"] == "max"


async def test_thinking_budget_without_engine_support_is_400_if_strict() -> None:
    answer, received = await forward(
        "/v1/messages", BUDGETED, "compatible", ServingOptions(strict=True)
    )
    assert answer.status_code == 400
    assert "thinking.budget_tokens" in answer.json()["error"]["message"]
    assert not received


async def test_explicit_budget_without_engine_support_is_400() -> None:
    body = {"messages": [USER], "thinking_token_budget": 100}
    answer, received = await forward("/v1/chat/completions", body, "compatible")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "thinking_token_budget"
    assert not received
