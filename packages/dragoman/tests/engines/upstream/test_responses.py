"""Upstreams with OpenAI's Responses API: requests are encoded, and event sequences are
parsed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core.errors import DragomanError, EngineError, Unsupported
from dragoman.core.event_grammar import check_events
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import (
    CustomTool,
    File,
    FunctionTool,
    Image,
    InlineMedia,
    Message,
    Reasoning,
    RemoteMedia,
    Role,
    Text,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from dragoman.core.request import (
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    ReasoningOptions,
    SamplingOptions,
    TemplateOptions,
)
from dragoman.engines.upstream import KINDS, UpstreamDefaults
from dragoman.engines.upstream.responses_events import ResponseEventReader
from dragoman.engines.upstream.responses_request import encode_responses_request
from tests.pictures import PIXEL

KIND = KINDS["responses"]
ADD = FunctionTool("add", "Adds", '{"type":"object"}', True)
RUN = CustomTool("run", "Runs", "lark", "start: /a+/")
LOOP = Conversation(
    (
        Message(Role.DEVELOPER, (Text("Be kind."),)),
        Message(
            Role.USER,
            (
                Text("hi"),
                Image(InlineMedia(PIXEL, "image/png"), "low"),
                File(RemoteMedia("https://x/y")),
            ),
        ),
        Message(
            Role.ASSISTANT,
            (
                Reasoning("hm", seal="openai:Z0FB"),
                Reasoning("lost"),
                Text("I add."),
                ToolCall("c1", "add", "{}"),
                ToolCall("c2", "run", "aa", custom=True),
            ),
        ),
        Message(Role.TOOL, (ToolResult("c1", (Text("bad"),), is_error=True),), "add"),
        Message(Role.TOOL, (ToolResult("c2", (Text("ok"), Text("!"))),), "run"),
    ),
    (ADD, RUN),
    ToolChoice("required", ("add",), is_named=True),
    parallel_tool_calls=False,
    reasoning=ReasoningOptions(effort="high"),
)


def test_encode_conversation_keeps_encrypted_reasoning() -> None:
    request = GenerateRequest(
        "m",
        LOOP,
        sampling=SamplingOptions(temperature=0.5, seed=3),
        limits=GenerationLimits(max_tokens=99, stop=("END",)),
        constraint=JsonSchema('{"type":"object"}', False, "a"),
    )
    encoded = encode_responses_request(request, KIND, "there", UpstreamDefaults())
    body = json.loads(encoded.body)
    items = body.pop("input")
    assert body == {
        "model": "there",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "temperature": 0.5,
        "max_output_tokens": 99,
        "reasoning": {"effort": "high", "summary": "auto"},
        "text": {
            "format": {
                "type": "json_schema",
                "name": "a",
                "schema": {"type": "object"},
                "strict": False,
            }
        },
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "name": "add"},
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Adds",
                "parameters": {"type": "object"},
                "strict": True,
            },
            {
                "type": "custom",
                "name": "run",
                "description": "Runs",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"},
            },
        ],
    }
    assert [item.get("role") or item["type"] for item in items] == [
        "developer", "user", "reasoning", "assistant", "function_call", "custom_tool_call",
        "function_call_output", "custom_tool_call_output",
    ]  # fmt: skip
    assert [part["type"] for part in items[1]["content"]] == [
        "input_text",
        "input_image",
        "input_file",
    ]
    assert items[2] == {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "Z0FB",
    }
    assert items[3]["content"] == [{"type": "output_text", "text": "I add."}]
    assert items[6]["output"] == "Error: bad"
    assert len(items[7]["output"]) == 2
    assert encoded.warnings == (
        "messages: reasoning that the upstream's vendor has not encrypted was left out",
    )


def test_encode_continue_final_message_is_unsupported() -> None:
    template = TemplateOptions(add_generation_prompt=False, continue_final_message=True)
    conversation = Conversation((Message(Role.ASSISTANT, (Text("a"),)),), template=template)
    with pytest.raises(Unsupported) as found:
        encode_responses_request(
            GenerateRequest("m", conversation), KIND, "there", UpstreamDefaults()
        )
    assert found.value.param == "continue_final_message"


CREATED = {"type": "response.created", "response": {"id": "resp_1", "usage": None, "error": None}}
PROGRESS = {"type": "response.in_progress", "response": {"id": "resp_1"}}


def build_added(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def build_done(index: int, **item: Any) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def delta(kind: str, index: int, text: str) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "output_index": index, "delta": text}


def end(status: str = "completed", **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
    }
    return {"type": f"response.{status}", "response": {"usage": usage, **fields}}


def read(*events: dict[str, Any]) -> list[Event]:
    reader = ResponseEventReader()
    found = [
        event for wire_event in events for event in reader.read(json.dumps(wire_event).encode())
    ]
    return list(check_events([*found, *reader.close()]))


MESSAGE = (
    build_added(0, type="message"),
    delta("output_text", 0, "Hello"),
    build_done(0, type="message"),
)


def test_read_output_items_returns_parts() -> None:
    summary_part = {
        "type": "response.reasoning_summary_part.added",
        "output_index": 0,
        "summary_index": 1,
    }
    call = {"type": "function_call", "call_id": "c1", "name": "add"}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "run"}
    assert read(
        CREATED,
        PROGRESS,
        build_added(0, type="reasoning"),
        delta("reasoning_summary_text", 0, "a"),
        summary_part,
        delta("reasoning_summary_text", 0, "b"),
        build_done(0, type="reasoning", encrypted_content="Z0FB"),
        build_added(1, type="message"),
        delta("output_text", 1, "Hi"),
        delta("refusal", 1, "No."),
        build_done(1, type="message"),
        build_added(2, **call),
        delta("function_call_arguments", 2, "{}"),
        build_done(2, **call, arguments="{}"),
        build_added(3, **custom),
        build_done(3, **custom, input="aa"),
        end(),
    ) == [
        Started(None),
        ReasoningDelta(0, "a"),
        ReasoningDelta(0, "\n\n"),
        ReasoningDelta(0, "b"),
        ReasoningDelta(0, "", seal="openai:Z0FB"),
        TextDelta(0, "Hi"),
        RefusalDelta(0, "No."),
        ToolCallStart(0, "c1", "add"),
        ToolCallDelta(0, "{}"),
        ToolCallStart(0, "c2", "run", (), True),
        ToolCallDelta(0, "aa"),
        ChoiceFinished(0, FinishReason.STOP),
        Finished(Usage(9, 5, 4, 2)),
    ]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("max_output_tokens", FinishReason.LENGTH), ("content_filter", FinishReason.CONTENT_FILTER)],
)
def test_read_incomplete_response_maps_reason(reason: str, expected: FinishReason) -> None:
    events = read(CREATED, *MESSAGE[:2], end("incomplete", incomplete_details={"reason": reason}))
    assert events[-2] == ChoiceFinished(0, expected)


@pytest.mark.parametrize(
    "events",
    [
        (),
        (CREATED, *MESSAGE),
        (CREATED, *MESSAGE[:2], end()),
        (CREATED, *MESSAGE, end("incomplete", incomplete_details={"reason": "whim"})),
        (CREATED, MESSAGE[1]),
        (CREATED, MESSAGE[0], delta("output_text", 4, "x")),
        (CREATED, MESSAGE[0], build_added(1, type="message")),
        MESSAGE,
        (CREATED, build_added(0, type="function_call", call_id="c")),
    ],
)
def test_read_truncated_stream_raises(events: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(EngineError):
        read(*events)


FAILURES = (
    {"type": "error", "code": "rate_limit_exceeded", "message": "No.", "param": None},
    {
        "type": "error",
        "error": {"type": "rate_limit_exceeded", "code": None, "message": "No.", "param": None},
    },
    end("failed", error={"code": "rate_limit_exceeded", "message": "No."}),
)


@pytest.mark.parametrize("failure", FAILURES)
def test_read_failed_event_raises_with_status(failure: dict[str, Any]) -> None:
    with pytest.raises(DragomanError) as before:
        read(failure)
    assert before.value.status == 429
    with pytest.raises(EngineError) as within:
        read(CREATED, *MESSAGE[:2], failure)
    assert within.value.status == 500
