"""Incompatibilities with real clients of Responses, each with its bug reports."""

from __future__ import annotations

from typing import Any

import pytest
from openai import APIError
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from dragoman.core.errors import ContextTooLong, EngineError, RateLimited
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
from dragoman.core.message import Reasoning, Role, Text, ToolResult
from dragoman.core.request import AnyJsonObject
from dragoman_check.rules.responses import check_stream

from ...laws.responses_sdk import ResponsesSdk
from .bodies import AGENTS, HEADER, WEATHER, call, conversation, events, render_full, request, turns

JsonObject = dict[str, Any]
STOP = ChoiceFinished(0, FinishReason.STOP)
DONE = Finished(Usage(1, 2))
ANSWER: tuple[Event, ...] = (
    Started(1),
    ReasoningDelta(0, "hm"),
    TextDelta(0, "Let "),
    TextDelta(0, "me see."),
    ToolCallStart(0, "call_1", "multi_agent_v1__close_agent"),
    ToolCallDelta(0, '{"a":'),
    ToolCallDelta(0, "1}"),
    ToolCallStart(0, "call_2", "run", custom=True),
    ToolCallDelta(0, "ls"),
)


def types(stream: list[JsonObject]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in stream]


@pytest.mark.parametrize("reason", list(FinishReason))
def test_stream_ends_with_terminal_event(reason: FinishReason):
    """ollama/ollama#14600: Codex says "stream closed before response.completed"."""
    stream = events(call(), *ANSWER, ChoiceFinished(0, reason), DONE)
    assert types(stream)[-1] == ("completed" if reason is FinishReason.STOP else "incomplete")
    assert types(stream[:-1]).count("completed") == 0


def test_namespaced_tool_calls_keep_name_and_namespace():
    """llama.cpp#20156, #24295; vllm#49493; ollama#17618; vllm#46737: rejected, dropped
    or flattened.
    """
    request = call(tools=[AGENTS])
    assert request.warnings == ()
    assert [tool.name for tool in conversation(tools=[AGENTS]).tools][
        1
    ] == "multi_agent_v1__close_agent"
    items = [event["item"] for event in events(request, *ANSWER, STOP, DONE) if "item" in event]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [(item["name"], item["namespace"]) for item in calls] == [
        ("close_agent", "multi_agent_v1")
    ] * 2


def test_custom_tools_are_mapped_and_hosted_tools_skipped():
    """llama.cpp#20156, #23465: one unknown tool was a 400 for the whole request."""
    hosted = [
        {"type": "web_search", "external_web_access": True},
        {"type": "tool_search"},
        {"type": "mcp", "server_label": "x"},
    ]
    tools = [*hosted, {"type": "custom", "name": "run"}, WEATHER]
    assert [tool.name for tool in conversation(tools=tools).tools] == ["run", "weather"]
    assert len(call(tools=tools).warnings) == 2


def test_call_output_accepts_list_of_parts():
    """llama.cpp#23465: "should be 'Input text'"."""
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b"},
        {"type": "text", "text": "c"},
    ]
    (message,) = turns({"type": "function_call_output", "call_id": "c", "output": parts})
    assert message.parts == (ToolResult("c", (Text("a"), Text("b"), Text("c"))),)


def test_developer_role_is_preserved():
    """llama.cpp#20079, ogx#6069: templates raise; the prompt's renderer maps the role
    where they would.
    """
    first, second = turns({"role": "developer", "content": "a"}, {"role": "user", "content": "b"})
    assert (first.role, second.role) == (Role.DEVELOPER, Role.USER)


def test_parallel_calls_have_separate_items():
    """litellm#33678, #21331; vercel/ai#14277; dynamo#4723: all calls on index 0."""
    stream = events(call(), *ANSWER, STOP, DONE)
    calls = [
        event
        for event in stream
        if "call" in event["type"] or "call" in event.get("item", {}).get("type", "")
    ]
    assert sorted({event["output_index"] for event in calls}) == [2, 3]
    assert len({item["call_id"] for item in stream[-1]["response"]["output"][2:]}) == 2


def test_call_name_is_complete_from_first_event():
    """lmstudio-bug-tracker#649, sglang#4700: empty names, or names that are repeated in
    each chunk.
    """
    stream = events(call(), *ANSWER, STOP, DONE)
    named = [event["item"]["name"] for event in stream if "name" in event.get("item", {})]
    assert named == ["multi_agent_v1__close_agent", "multi_agent_v1__close_agent", "run", "run"]
    assert not any("name" in event for event in stream if event["type"].endswith(".delta"))


def test_stream_cut_within_call_ends_as_incomplete():
    """mlx-lm#905: the connection was dropped."""
    stream = events(call(), *ANSWER[:6], ChoiceFinished(0, FinishReason.LENGTH), DONE)
    last = stream[-1]["response"]
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in last["output"]] == ["completed", "completed", "incomplete"]
    assert last["output"][-1]["arguments"] == '{"a":'


def test_response_has_id_created_at_and_usage():
    """zed#34513, #54804, #42893."""
    last = events(call(), *ANSWER, STOP, DONE)[-1]["response"]
    assert (last["id"], last["created_at"]) == (HEADER.id, HEADER.created)
    assert last["usage"]["total_tokens"] == 3


def test_stream_items_are_closed_and_ids_match_final_object():
    """litellm#37852, vllm#38227, #45742; ogx#5309: no output_text.done, other ids,
    wrong content_index.
    """
    stream = events(call(), *ANSWER, STOP, DONE)
    final = stream[-1]["response"]["output"]
    for kind in ("output_item.added", "output_item.done"):
        assert [event["item"]["id"] for event in stream if event["type"] == f"response.{kind}"] == [
            item["id"] for item in final
        ]
    assert (
        types(stream).count("output_text.done") == types(stream).count("reasoning_text.done") == 1
    )
    assert (
        types(stream).count("function_call_arguments.done")
        == types(stream).count("custom_tool_call_input.done")
        == 1
    )
    assert {event.get("content_index", 0) for event in stream} == {0}


def test_sequence_numbers_have_no_gap_around_keepalives():
    """llama.cpp#24957, vllm#37071: missing or restarting."""
    writer = call().writer(HEADER)
    sent = writer.keepalive + writer.feed(Started(1)) + writer.keepalive
    for event in (*ANSWER[1:], STOP):
        sent += writer.feed(event) + writer.keepalive
    stream = check_stream(sent + writer.feed(DONE) + writer.end)
    assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
    assert types(stream).count("in_progress") == len(ANSWER) + 2


def test_keepalive_after_last_event_is_comment():
    writer = call().writer(HEADER)
    sent = b"".join(map(writer.feed, (Started(1), STOP, DONE))) + writer.keepalive + writer.end
    assert types(check_stream(sent))[-1] == "completed"


@pytest.mark.parametrize("early", [True, False])
def test_first_event_is_created(early: bool):
    """litellm#9545. Also if the first event is a keepalive or a failure."""
    writer = call().writer(HEADER)
    stream = check_stream(
        (writer.keepalive if early else b"") + writer.render_error(EngineError("broken"))
    )
    assert types(stream)[:2] == ["created", "in_progress"]
    assert types(stream)[-2:] == ["error", "failed"]


def test_keepalive_is_in_progress_event():
    """openai/codex#31539: comments do not reset Codex's timeout; a nonstandard event
    would break openai-node.
    """
    writer = call().writer(HEADER)
    writer.feed(Started(1))
    assert writer.keepalive.startswith(b"event: response.in_progress\n")


def test_context_overflow_has_context_length_exceeded_code():
    """earendil-works/pi#5930, harbor#996."""
    writer = call().writer(HEADER)
    stream = check_stream(writer.render_error(ContextTooLong(limit=10, prompt=20)))
    assert stream[-1]["response"]["error"]["code"] == "context_length_exceeded"
    assert stream[-2]["code"] == stream[-2]["error"]["code"] == "context_length_exceeded"


def test_rate_limit_has_rate_limit_exceeded_code():
    stream = check_stream(call().writer(HEADER).render_error(RateLimited("Slow down.")))
    assert stream[-1]["response"]["error"] == {
        "code": "rate_limit_exceeded",
        "message": "Slow down.",
    }


def test_failure_sends_error_and_response_failed_events():
    """Some clients show the one event, some the other. The official SDK raises; both
    events are of its types.
    """
    writer = call().writer(HEADER)
    sent = b"".join(writer.feed(event) for event in ANSWER[:6]) + writer.render_error(
        EngineError("broken")
    )
    error, failed = check_stream(sent)[-2:]
    assert (
        error["message"]
        == error["error"]["message"]
        == failed["response"]["error"]["message"]
        == "broken"
    )
    any_event: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    for event in (error, failed):
        any_event.validate_python(event, strict=True)
    with pytest.raises(APIError, match="broken"):
        ResponsesSdk().response(sent)


def test_failed_stream_leaves_open_call_incomplete():
    """Codex runs a tool as soon as its item is done."""
    writer = call().writer(HEADER)
    stream = check_stream(
        b"".join(writer.feed(event) for event in ANSWER[:6])
        + writer.render_error(EngineError("broken"))
    )
    assert types(stream).count("output_item.done") == 2
    assert stream[-1]["response"]["output"][-1]["status"] == "incomplete"


def test_stream_ends_with_done_marker():
    writer = call().writer(HEADER)
    assert writer.end == b"data: [DONE]\n\n"
    assert writer.render_error(EngineError("x")).endswith(b"data: [DONE]\n\n")


def test_events_have_name_line_before_data():
    writer = call().writer(HEADER)
    for event in (*ANSWER, STOP, DONE):
        for block in writer.feed(event).split(b"\n\n")[:-1]:
            name, data = block.split(b"\n")
            assert name.startswith(b"event: response.")
            assert data.startswith(b'data: {"type":"%s",' % name.removeprefix(b"event: "))


def test_text_deltas_have_logprobs_and_calls_stream_in_pieces():
    stream = events(call(), *ANSWER, STOP, DONE)
    assert [
        event["logprobs"] for event in stream if event["type"].startswith("response.output_text")
    ] == [[], [], []]
    pieces = [
        event["delta"]
        for event in stream
        if event["type"] == "response.function_call_arguments.delta"
    ]
    assert pieces == ['{"a":', "1}"]


def test_usage_is_null_until_completed_event():
    stream = events(call(), *ANSWER, STOP, Finished(Usage(5, 3, 4, 1)))
    assert stream[0]["response"]["usage"] is None
    assert stream[-1]["response"]["usage"] == {
        "input_tokens": 5, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 8,
    }  # fmt: skip


def test_reasoning_item_without_follower_is_replayed():
    """openai-agents-js#929"""
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
    }
    first, second = turns(thought, {"role": "user", "content": "And?"})
    assert (first.role, first.parts) == (Role.ASSISTANT, (Reasoning("hm"),))
    assert second.role is Role.USER


def test_structured_output_and_tools_are_combined():
    """vllm#16313"""
    assert (
        request(tools=[WEATHER], text={"format": {"type": "json_object"}}).constraint
        == AnyJsonObject()
    )


def test_empty_text_part_creates_no_item():
    silent: tuple[Event, ...] = (
        Started(1),
        TextDelta(0, ""),
        ReasoningDelta(0, "a"),
        TextDelta(0, ""),
        STOP,
        DONE,
    )
    assert [item["type"] for item in render_full(call(), *silent)["output"]] == ["reasoning"]
    assert [event["item"]["type"] for event in events(call(), *silent) if "item" in event] == [
        "reasoning"
    ] * 2
