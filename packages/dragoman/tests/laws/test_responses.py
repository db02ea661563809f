"""Responses: the official SDK accumulates our stream to our full response."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import APIError
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from dragoman.core.errors import EngineError
from dragoman.core.events import Finished, FinishReason
from dragoman.core.message import Reasoning, Text, ToolCall
from dragoman.dialects.interfaces import Header
from dragoman.dialects.json_encoding import clamp_logprob, replace_surrogates
from dragoman.dialects.responses import Echo, ResponsesRenderOptions, ResponsesWriter
from dragoman.dialects.responses.stored_events import StoredEvent, encode_events, read_events
from dragoman.dialects.responses.stored_response import StoredResponse, finalize
from dragoman.dialects.responses.tool_registry import ToolName
from dragoman.dialects.token_alignment import content_tokens
from dragoman_check.rules import responses as grammar

from .responses_sdk import ResponsesSdk
from .sdk import write_stream
from .strategies import SERVER_TOOLS, Case, Kinds, cases

JsonObject = dict[str, Any]
HEADER = Header("resp_1", 1700000000, "org/model", "fp_1")
ECHO = Echo(
    rest=b'"instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"parallel_tool_calls":true,'
    b'"presence_penalty":0.0,"frequency_penalty":0.0,"prompt_cache_key":null,"reasoning":{"effort":null,"summary":null},'
    b'"safety_identifier":null,"service_tier":"default","temperature":1.0,"text":{"format":{"type":"text"}},'
    b'"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled"'
)
DELTAS = ("response.output_text.delta", "response.refusal.delta")


def is_consistent(case: Case) -> bool:
    return (case.reply.usage.reasoning or 0) <= (case.reply.usage.completion or 0)


def wrap(text: str, seal: str) -> str:
    return f"{seal} of {text}"


def fake_seal(thought: str) -> str:
    return f"sealed {len(thought)}"


one_answer = cases(Kinds(max_choices=1)).filter(is_consistent)
views = st.builds(
    ResponsesRenderOptions,
    logprobs=st.sampled_from((None, 0, 1)),
    as_summary=st.booleans(),
    hide_reasoning=st.sampled_from((False, False, True)),
    tool_names=st.sampled_from(
        (
            (),
            (ToolName("a", "find", "crm"), ToolName("b", "close", "agents")),
            (ToolName("a", "a", "", "tool_search"), ToolName("b", "b", "", "shell")),
        )
    ),
    seal_reasoning=st.sampled_from((None, fake_seal)),
    wrap_seal=st.sampled_from((None, wrap)),
    now=st.sampled_from((None, lambda: 1700000009)),
)


mcp_answer = cases(Kinds(max_choices=1, custom=False, server_tools=True)).filter(is_consistent)
mcp_views = st.builds(
    ResponsesRenderOptions,
    tool_names=st.just(
        tuple(ToolName(tool.qualified, tool.name, "", server_tool=tool) for tool in SERVER_TOOLS)
    ),
    now=st.just(lambda: 1700000009),
    include_sources=st.booleans(),
    include_file_results=st.booleans(),
    include_code_outputs=st.booleans(),
    partial_images=st.integers(0, 3),
)


@pytest.fixture(scope="module")
def sdk() -> ResponsesSdk:
    return ResponsesSdk()


def write_response_stream(case: Case, view: ResponsesRenderOptions) -> bytes:
    return write_stream(ResponsesWriter(HEADER, view, ECHO), case.events)


def render_full(case: Case, view: ResponsesRenderOptions) -> JsonObject:
    return json.loads(ResponsesWriter(HEADER, view, ECHO).render_full(case.reply))


def normal(value: Any) -> Any:
    """Remove nulls and fields that the SDK parses."""
    if isinstance(value, dict):
        fields = cast(JsonObject, value)
        return {
            key: normal(item)
            for key, item in fields.items()
            if item is not None and "parsed" not in key
        }
    return [normal(item) for item in cast(list[Any], value)] if isinstance(value, list) else value


@given(one_answer, views)
def test_sdk_accumulates_stream_to_full_response(
    sdk: ResponsesSdk, case: Case, view: ResponsesRenderOptions
):
    last, snapshots = sdk.response(write_response_stream(case, view))
    response = render_full(case, view)
    assert normal(json.loads(last.to_json(warnings=False))) == normal(response)
    for index, snapshot in snapshots.items():
        item = response["output"][index]
        if item["type"] != "tool_search_call":
            assert snapshot == (
                item["content"][0]["text"] if item["type"] == "message" else item["arguments"]
            )


@given(one_answer, views)
def test_last_event_contains_full_response_bytes(case: Case, view: ResponsesRenderOptions):
    last = write_response_stream(case, view).split(b"\n\n")[-3]
    assert last.endswith(
        b'"response":%s}' % ResponsesWriter(HEADER, view, ECHO).render_full(case.reply)
    )


@given(one_answer, views)
def test_stream_and_full_response_follow_wire_grammar(case: Case, view: ResponsesRenderOptions):
    grammar.check_stream(write_response_stream(case, view))
    grammar.check_object(render_full(case, view))


@given(one_answer, views)
def test_objects_and_events_satisfy_sdk_types_strictly(case: Case, view: ResponsesRenderOptions):
    Response.model_validate_json(json.dumps(render_full(case, view)), strict=True)
    any_event: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    for event in grammar.check_stream(write_response_stream(case, view)):
        any_event.validate_json(json.dumps(event), strict=True)


@given(mcp_answer, mcp_views)
def test_stream_of_mcp_tools_folds_to_full_response(case: Case, view: ResponsesRenderOptions):
    events = grammar.check_stream(write_response_stream(case, view))
    response = render_full(case, view)
    grammar.check_object(response)
    assert events[-1]["response"] == response
    Response.model_validate_json(json.dumps(response), strict=True)
    any_event: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
    for event in events:
        any_event.validate_json(json.dumps(event), strict=True)


@given(one_answer, views)
def test_output_items_match_reply_parts(case: Case, view: ResponsesRenderOptions):
    (choice,) = case.reply.choices
    parts = [
        part
        for part in choice.parts
        if isinstance(part, ToolCall) or part.text or (isinstance(part, Reasoning) and part.seal)
    ]
    if view.hide_reasoning:
        parts = [part for part in parts if not isinstance(part, Reasoning)]
    response = render_full(case, view)
    assert [text_of(item) for item in response["output"]] == [
        json.loads(part.arguments)
        if isinstance(part, ToolCall) and item["type"] == "tool_search_call"
        else replace_surrogates(part.arguments if isinstance(part, ToolCall) else part.text)
        for part, item in zip(parts, response["output"], strict=True)
    ]
    assert (response["status"] == "completed") == (choice.reason is FinishReason.STOP)
    if view.logprobs is not None:
        scores = [
            item["content"][0].get("logprobs")
            for item in response["output"]
            if item["type"] == "message"
        ]
        texts = [part for part in parts if isinstance(part, Text)]
        listed = [
            [(entry["token"], entry["logprob"]) for entry in each]
            for each in scores
            if each is not None
        ]
        assert listed == [
            [
                (token.text, clamp_logprob(token.logprob))
                for token in content_tokens(part.text, part.tokens)
            ]
            for part in texts
        ]


def text_of(item: JsonObject) -> Any:
    match item["type"]:
        case "message":
            part = item["content"][0]
            return part.get("text", part.get("refusal"))
        case "reasoning":
            return (item["summary"] or item["content"])[0]["text"]
        case "function_call" | "tool_search_call":
            return item["arguments"]
        case _:
            return item["input"]


@given(one_answer, views, st.data())
def test_stream_failing_at_any_point_ends_with_error(
    sdk: ResponsesSdk, case: Case, view: ResponsesRenderOptions, data: st.DataObject
):
    writer = ResponsesWriter(HEADER, view, ECHO)
    events = case.events[: data.draw(st.integers(0, len(case.events) - 1))]
    sent = b""
    for event in events:
        sent += writer.feed(event)
        if data.draw(st.booleans()):
            sent += writer.keepalive
    sent += writer.render_error(EngineError("The engine stopped."))
    assert not any(isinstance(event, Finished) for event in events)
    assert grammar.check_stream(sent)[-1]["response"]["error"]["message"] == "The engine stopped."
    with pytest.raises(APIError, match="The engine stopped"):
        sdk.response(sent)


@given(one_answer)
def test_writer_output_contains_only_complete_events(case: Case):
    writer = ResponsesWriter(HEADER, ResponsesRenderOptions(), ECHO)
    for event in case.events:
        output = writer.feed(event)
        assert not output or output.endswith(b"\n\n")


# Stored responses.


def record_events(
    case: Case, view: ResponsesRenderOptions
) -> tuple[ResponsesWriter, list[list[StoredEvent]]]:
    """Return all events of a background response, grouped by canonical event."""
    writer = ResponsesWriter(HEADER, view, ECHO)
    writer.start_recording()
    writer.render_queued_events()
    batches = [writer.take_events()]
    for event in case.events:
        writer.feed(event)
        batches.append(writer.take_events())
    return writer, [batch for batch in batches if batch]


def join(batches: list[list[StoredEvent]]) -> list[StoredEvent]:
    return [event for batch in batches for event in batch]


def render_all(events: list[StoredEvent]) -> bytes:
    return b"".join(event.render() for event in events)


@given(one_answer, views)
def test_background_response_starts_as_queued(case: Case, view: ResponsesRenderOptions):
    writer, batches = record_events(case, view)
    events = grammar.check_stream(render_all(join(batches)) + writer.end)
    assert [event["response"]["status"] for event in events[:3]] == [
        "queued",
        "queued",
        "in_progress",
    ]
    assert events[-1]["response"] == json.loads(writer.render_full(case.reply))


@given(one_answer, views)
def test_full_response_renders_identical_bytes_each_time(case: Case, view: ResponsesRenderOptions):
    """Seals and times would differ each time if they were created again."""
    signatures = (f"seal {i}" for i in range(1_000_000))

    def seal(thought: str) -> str:
        return next(signatures)

    view = msgspec.structs.replace(view, seal_reasoning=seal)
    writer = ResponsesWriter(HEADER, view, ECHO)
    *before, last = case.events
    for event in before:
        writer.feed(event)
    full = writer.render_full(case.reply)
    assert writer.feed(last).endswith(b'"response":%s}\n\n' % full)
    assert writer.render_full(case.reply) == full
    lone = ResponsesWriter(HEADER, view, ECHO)
    assert lone.render_full(case.reply) == lone.render_full(case.reply)


@given(one_answer, views)
def test_recorded_events_equal_stream_bytes(case: Case, view: ResponsesRenderOptions):
    writer = ResponsesWriter(HEADER, view, ECHO)
    streamed = writer.render_queued_events() + b"".join(writer.feed(event) for event in case.events)
    events = join(record_events(case, view)[1])
    assert render_all(events) == streamed
    assert [event.number for event in events] == list(range(len(events)))
    assert [event.is_terminal for event in events] == [False] * (len(events) - 1) + [True]
    assert read_events(encode_events(events)) == events


@given(one_answer, views, st.none() | st.just(EngineError("The server stopped.")), st.data())
def test_finalize_at_any_point_yields_valid_stream(
    case: Case, view: ResponsesRenderOptions, error: EngineError | None, data: st.DataObject
):
    writer, batches = record_events(case, view)
    events = join(batches[: data.draw(st.integers(1, len(batches) - 1))])
    queued_object = msgspec.Raw(ResponsesWriter(HEADER, view, ECHO).render_queued())
    end = finalize(StoredResponse(object=queued_object), events, error)
    assert end.events[0].number == events[-1].number + 1
    last = grammar.check_stream(render_all([*events, *end.events]) + writer.end)[-1]["response"]
    assert last == json.loads(end.response)
    assert last["status"] == end.status == ("cancelled" if error is None else "failed")
