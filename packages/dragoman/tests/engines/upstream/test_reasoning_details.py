"""Reasoning that a Chat Completions upstream has signed or encrypted comes back to it
unchanged from clients of every dialect that carries it.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from tests.engines.upstream.odd_stream import sse
from tests.engines.upstream.relays import build_engine, direct
from tests.engines.upstream.stub_server import Pieces, far_server
from tests.engines.upstream.test_law import chat, messages, responses

from dragoman.core.message import SealKind
from dragoman.core.reasoning_details import (
    ReasoningDetail,
    build_reasoning_detail,
    read_seal,
)
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel

SIGNED = {
    "type": "reasoning.text",
    "text": "hm",
    "signature": "c2ln",
    "format": "anthropic-claude-v1",
    "index": 0,
}
ENCRYPTED = {
    "type": "reasoning.encrypted",
    "data": "Z0FB",
    "format": "google-gemini-v1",
    "id": "tool_add_1",
    "index": 1,
}


@pytest.mark.parametrize("detail", [SIGNED, ENCRYPTED, {**ENCRYPTED, "format": "xai-responses-v1"}])
def test_seal_of_detail_builds_same_detail(detail: dict[str, Any]) -> None:
    parsed = ReasoningDetail(**detail)
    index = parsed.index or 0
    assert build_reasoning_detail(parsed.text or "", read_seal(parsed), index) == parsed


def test_detail_without_signature_has_no_seal() -> None:
    assert read_seal(ReasoningDetail("reasoning.text", "hm", id="x", index=0)) == ""


def test_changed_seal_builds_text_without_signature() -> None:
    found = build_reasoning_detail("hm", SealKind.OPENROUTER + "{", 0)
    assert found == ReasoningDetail("reasoning.text", "hm", index=0)


async def continue_chat(client: httpx2.AsyncClient) -> None:
    path, body = chat()
    message = (await client.post(path, json=body)).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    await client.post(path, json={**body, "messages": [*body["messages"], message, result]})


async def continue_messages(client: httpx2.AsyncClient) -> None:
    path, body = messages()
    content = (await client.post(path, json=body)).json()["content"]
    result = {"type": "tool_result", "tool_use_id": "c", "content": "3"}
    turns = [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    await client.post(path, json={**body, "messages": [*body["messages"], *turns]})


async def continue_responses(client: httpx2.AsyncClient) -> None:
    path, body = responses()
    output = (await client.post(path, json=body)).json()["output"]
    result = {"type": "function_call_output", "call_id": "c", "output": "3"}
    await client.post(path, json={**body, "input": [*body["input"], *output, result]})


@pytest.mark.parametrize("go_on", [continue_chat, continue_messages, continue_responses])
async def test_upstream_reasoning_details_come_back(go_on: Any) -> None:
    bodies: list[dict[str, Any]] = []
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": "{}"}}
    stream = sse(
        {"choices": [{"delta": {"reasoning": "hm", "reasoning_details": [SIGNED]}}]},
        {"choices": [{"delta": {"reasoning_details": [ENCRYPTED], "tool_calls": [call]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
    )

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            return httpx2.Response(200, json={"data": []})
        bodies.append(json.loads(request.content))
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Pieces(stream))

    async with far_server(answer) as address:
        engine = build_engine(address, kind="compatible")
        model = ServedModel("m", EventBackend(engine), 4096, 1_700_000_000)
        async with direct(Models([model])) as client:
            await go_on(client)
    _, assistant, _ = bodies[1]["messages"]
    assert assistant["reasoning_details"] == [SIGNED, ENCRYPTED]
    assert assistant["reasoning_content"] == "hm"
