"""Requests of real clients of Responses, recorded from them, and the responses that
they need.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

from dragoman.core.errors import RequestError
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import Message, Reasoning, Role, Text, ToolCall
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import Conversation, JsonSchema
from dragoman.dialects.interfaces import Profile
from dragoman.dialects.openai_errors import render_openai_error
from dragoman.dialects.responses import read_responses

from .bodies import AGENTS, HEADER, OPTIONS, WEATHER, call, conversation, request, turns

JsonObject = dict[str, Any]
STOP = ChoiceFinished(0, FinishReason.STOP)
DONE = Finished(Usage(5, 3))
CODEX: JsonObject = {
    "model": "tiny",
    "instructions": None,
    "input": [
        {"type": "message", "id": "msg_a", "role": "developer", "content": [{"type": "input_text",
        "text": "base"}]},
        {"type": "message", "id": "msg_b", "role": "user", "content": [{"type": "input_text",
        "text": "env"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "do it"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}],
        "content": None,
         "encrypted_content": None},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "close_agent",
         "namespace": "multi_agent_v1", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_1", "output": "closed"},
    ],
    "tools": [WEATHER, AGENTS, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"x-codex-installation-id": "1"},
}  # fmt: skip


def answer_name(prompt: Conversation) -> tuple[Event, ...]:
    del prompt
    return (Started(1), TextDelta(0, '{"name": "Paris"}'), STOP, DONE)


class Served:
    """The official SDK against our reader and writer; a function provides the model's
    answers.
    """

    def __init__(self, answer: Callable[[Conversation], tuple[Event, ...]]) -> None:
        self._answer = answer
        self.conversations: list[Conversation] = []
        self.client = openai.OpenAI(
            api_key="x",
            base_url="http://test/v1",
            http_client=httpx2.Client(transport=httpx2.MockTransport(self._serve)),
            max_retries=0,
        )

    def _serve(self, http: httpx2.Request) -> httpx2.Response:
        try:
            call = read_responses(http.read(), OPTIONS).call
        except RequestError as error:
            return httpx2.Response(error.status, content=render_openai_error(error, Profile.OPENAI))
        prompt = call.requests[0].prompt
        assert isinstance(prompt, Conversation)
        self.conversations.append(prompt)
        events = self._answer(prompt)
        writer = call.writer(HEADER)
        if call.stream:
            body = b"".join(map(writer.feed, events)) + writer.end
            return httpx2.Response(200, content=body, headers={"content-type": "text/event-stream"})
        fold = ReplyBuilder()
        for event in events:
            fold.feed(event)
        return httpx2.Response(
            200,
            content=writer.render_full(fold.build()),
            headers={"content-type": "application/json"},
        )


def reporter(prompt: Conversation) -> tuple[Event, ...]:
    """A scripted model that reasons and calls the tool once, then repeats its result."""
    if prompt.messages[-1].role is Role.TOOL:
        return (Started(5), TextDelta(0, "It is sunny."), STOP, DONE)
    tool_call = (
        ToolCallStart(0, "call_1", "weather"),
        ToolCallDelta(0, '{"city": "Par'),
        ToolCallDelta(0, 'is"}'),
    )
    return (Started(5), ReasoningDelta(0, "Ask."), *tool_call, STOP, DONE)


def test_codex_request_is_parsed():
    parsed = call(**CODEX)
    assert parsed.unknown == ()
    assert len(parsed.warnings) == 2  # the hosted tool, and that there is no key
    assert parsed.requests[0].limits.max_tokens is None
    developer, env, ask, turn, result = conversation(**CODEX).messages
    assert (developer.role, env.role, ask.role) == (Role.DEVELOPER, Role.USER, Role.USER)
    assert turn.parts == (Reasoning("hm"), ToolCall("call_1", "multi_agent_v1__close_agent", "{}"))
    assert result.role is Role.TOOL


def test_codex_stream_has_full_items_and_completed_event():
    writer = call(**CODEX).writer(HEADER)
    sent = b"".join(map(writer.feed, reporter(conversation(**{**CODEX, "input": "hi"})))).decode()
    done = [json.loads(block.split("data: ")[1]) for block in sent.split("\n\n")[:-1]]
    items = [event["item"] for event in done if event["type"] == "response.output_item.done"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "Ask."}]
    assert items[1]["arguments"] == '{"city": "Paris"}'
    assert done[-1]["type"] == "response.completed"
    assert done[-1]["response"]["id"] == "resp_1"


def test_codex_output_schema_becomes_constraint():
    format = {
        "type": "json_schema",
        "name": "codex_output_schema",
        "strict": True,
        "schema": {"type": "object"},
    }
    assert request(text={"format": format}).constraint == JsonSchema(
        '{"type":"object"}', True, "codex_output_schema"
    )


def test_sdk_tool_loop_replays_output_items():
    """The SDK's output items are accepted unchanged as input: reasoning, call and all
    nulls.
    """
    served = Served(reporter)
    tools: Any = [{**WEATHER, "strict": False}]
    history: Any = [{"role": "user", "content": "What is the weather?"}]
    first = served.client.responses.create(model="tiny", input=history, tools=tools)
    history += [item.to_dict() for item in first.output]
    history.append({"type": "function_call_output", "call_id": "call_1", "output": "sunny"})
    second = served.client.responses.create(model="tiny", input=history, tools=tools)
    assert second.output_text == "It is sunny."
    _, turn, result = served.conversations[1].messages
    assert turn == Message(
        Role.ASSISTANT, (Reasoning("Ask."), ToolCall("call_1", "weather", '{"city": "Paris"}'))
    )
    assert result.name == "weather"


def test_sdk_streams_tool_call():
    served = Served(reporter)
    tools: Any = [{**WEATHER, "strict": False}]
    with served.client.responses.stream(model="tiny", input="hi", tools=tools) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "function_call"]


class City(BaseModel):
    name: str


def test_sdk_parse_returns_structured_output():
    served = Served(answer_name)
    assert served.client.responses.parse(
        model="tiny", input="hi", text_format=City
    ).output_parsed == City(name="Paris")


def test_sdk_error_has_param():
    served = Served(reporter)
    with pytest.raises(openai.BadRequestError) as caught:
        served.client.responses.create(model="tiny", input="hi", temperature=9)
    assert caught.value.param == "temperature"


def test_load_generator_fields_are_parsed():
    parsed = request(
        ignore_eos=True, min_tokens=8, max_output_tokens=8, stream_options={"include_usage": True}
    )
    assert (parsed.limits.ignore_eos, parsed.limits.min_tokens, parsed.limits.max_tokens) == (
        True,
        8,
        8,
    )


def test_items_with_nulls_or_missing_fields_are_parsed():
    bare = {"role": "user", "content": "hi"}
    full = {"type": "message", "id": None, "status": None, "role": "user", "phase": None,
            "content": [{"type": "input_text", "text": "hi", "image_url": None}]}  # fmt: skip
    assert turns(bare) == turns(full) == (Message(Role.USER, (Text("hi"),)),)
    function_call = {
        "type": "function_call",
        "call_id": "c",
        "name": "f",
        "arguments": "{}",
        "id": None,
        "status": None,
    }
    assert turns(function_call)[0].parts == (ToolCall("c", "f", "{}"),)


def test_unknown_field_is_reported_without_error():
    assert call(x_session="1").unknown == ("x_session",)
