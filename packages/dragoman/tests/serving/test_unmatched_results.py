"""A tool result without a matching call in the conversation is rejected; vLLM's profile
accepts it with a warning.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.serving.background_server import run_background_server
from tests.serving.harness import ServerHarness, build_server

from dragoman.dialects.interfaces import Profile
from dragoman.engines.scripted import CallTool, Say, ScriptEntry
from dragoman.serving.serving_options import ServingOptions

HI: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
}
USE: dict[str, Any] = {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}
TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def chat(call_id: str, *more: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    calls = {"role": "assistant", "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": call_id, "content": "x"}
    return "/v1/chat/completions", {"messages": [HI, calls, result, *more]}


def responses(call_id: str) -> tuple[str, dict[str, Any]]:
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": call_id, "output": "x"}
    return "/v1/responses", {"input": [HI, call, output]}


def custom(call_id: str) -> tuple[str, dict[str, Any]]:
    call = {"type": "custom_tool_call", "call_id": "call_1", "name": "f", "input": "a"}
    output = {"type": "custom_tool_call_output", "call_id": call_id, "output": "x"}
    return "/v1/responses", {"input": [HI, call, output]}


def messages(call_id: str) -> tuple[str, dict[str, Any]]:
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "x"}],
    }
    return "/v1/messages", {
        "max_tokens": 9,
        "messages": [HI, {"role": "assistant", "content": [USE]}, result],
    }


DIALECTS = [chat, responses, custom, messages]


def serve(profile: Profile = Profile.OPENAI, *, strict: bool = False) -> ServerHarness:
    options = ServingOptions(profile=profile, strict=strict)
    return build_server(ScriptEntry((Say("Hello"),), repeat=True), options=options)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_tool_output_without_call_returns_400_with_id(dialect: Any) -> None:
    path, body = dialect("call_x")
    answer = await serve().post(path, body)
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert "No tool call found for the tool output with id 'call_x'" in message
    path, body = dialect("call_1")
    assert (await serve().post(path, body)).status_code == 200


async def test_tool_output_before_its_call_returns_400() -> None:
    _, body = chat("call_1")
    body["messages"][1:] = reversed(body["messages"][1:])
    assert (await serve().post("/v1/chat/completions", body)).status_code == 400


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_tool_output_without_call_warns_in_vllm_profile(dialect: Any) -> None:
    path, body = dialect("call_x")
    answer = await serve(Profile.VLLM).post(path, body)
    assert answer.status_code == 200, answer.text
    assert (
        "no tool call found for the tool output with id 'call_x'"
        in answer.headers["x-dragoman-warnings"]
    )
    path, body = dialect("call_1")
    assert "x-dragoman-warnings" not in (await serve(Profile.VLLM).post(path, body)).headers
    path, body = dialect("call_x")
    assert (await serve(Profile.VLLM, strict=True).post(path, body)).status_code == 400


async def test_legacy_function_message_without_call_accepted() -> None:
    body = {"messages": [HI, {"role": "function", "name": "f", "content": "x"}]}
    assert (await serve().post("/v1/chat/completions", body)).status_code == 200


async def test_ollama_tool_message_needs_call_only_with_id() -> None:
    body = {
        "model": "m",
        "stream": False,
        "messages": [HI, {"role": "tool", "tool_name": "f", "content": "x"}],
    }
    assert (await serve().post("/api/chat", body)).status_code == 200
    body["messages"] = [
        HI,
        {"role": "tool", "tool_name": "f", "tool_call_id": "call_x", "content": "x"},
    ]
    assert (await serve().post("/api/chat", body)).status_code == 400


async def test_tool_output_matches_call_of_previous_response() -> None:
    async with run_background_server(
        ScriptEntry((CallTool("f", "{}"),)), ScriptEntry((Say("Done"),), repeat=True)
    ) as server:
        first = (await server.post("/v1/responses", {"input": "hi", "tools": [TOOL]})).json()
        call = next(item for item in first["output"] if item["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
        followed = {"input": [output], "previous_response_id": first["id"]}
        assert (await server.post("/v1/responses", followed)).status_code == 200
        lost = await server.post("/v1/responses", {"input": [output]})
        assert lost.status_code == 400
        assert lost.json()["error"]["param"] == "input"
