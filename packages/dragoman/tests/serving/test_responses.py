"""The Responses API of a server without a store, through the official SDK."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from tests.serving.harness import build_server

from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_check.rules.responses import check_stream

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
ANSWER = ScriptEntry((Think("Hmm."), Say("I add."), CallTool("add", '{"a": 1}')), repeat=True)
ASK: dict[str, Any] = {"model": "m", "input": "hi", "tools": [ADD]}


async def test_response_returns_reasoning_message_and_function_call() -> None:
    response = (
        await build_server(ANSWER).openai().responses.create(model="m", input="hi", tools=[ADD])
    )
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.output_text == "I add."
    assert response.status == "completed"


async def test_response_stream_final_equals_full_response() -> None:
    server = build_server(ANSWER)
    async with server.openai().responses.stream(model="m", input="hi", tools=[ADD]) as stream:
        streamed = await stream.get_final_response()
    full = await server.openai().responses.create(model="m", input="hi", tools=[ADD])
    assert [item.type for item in streamed.output] == [item.type for item in full.output]
    assert streamed.output_text == full.output_text
    assert streamed.usage == full.usage


async def test_response_stream_follows_wire_grammar() -> None:
    answer = await build_server(ANSWER).post("/v1/responses", {**ASK, "stream": True})
    events = check_stream(answer.content)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_response_without_store_has_store_false() -> None:
    server = build_server(ANSWER)
    answer = await server.post("/v1/responses", {**ASK, "store": True})
    assert answer.json()["store"] is False
    assert "store" in answer.headers["x-dragoman-warnings"]


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"id": "msg_1"}]}, "input[0]"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_response_fields_requiring_store_rejected_by_name(
    field: dict[str, Any], param: str, streamed: bool
) -> None:
    server = build_server(ANSWER)
    answer = await server.post("/v1/responses", {**ASK, **field, "stream": streamed})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert server.engine.num_requests == 0


async def test_response_stream_failure_sends_error_then_failed() -> None:
    server = build_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke"))))
    answer = await server.post("/v1/responses", {**ASK, "stream": True})
    kinds = [
        line.removeprefix("event: ")
        for line in answer.text.splitlines()
        if line.startswith("event: ")
    ]
    assert kinds[-2:] == ["error", "response.failed"]
    assert "the engine broke" in answer.text


async def test_response_stream_rejection_returns_400() -> None:
    server = build_server(ScriptEntry((Fail(400, "cannot"),)))
    with pytest.raises(openai.BadRequestError, match="cannot"):
        await server.openai().responses.create(model="m", input="hi", stream=True)


async def test_response_context_overflow_names_input_field() -> None:
    models = build_models(Settings(max_model_len=64), SystemClock())
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.post("/v1/responses", json={"input": "word " * 1000})
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
