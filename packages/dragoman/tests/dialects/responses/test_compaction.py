"""Compaction: its request to the model, its item, and the messages that it becomes when
a client sends it back.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core.errors import RequestError, Unsupported
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
)
from dragoman.core.message import Message, Role, Text
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import Conversation
from dragoman.dialects.responses import ResponsesCall, assign_ids, read_responses
from dragoman.dialects.responses.item_reader import SUMMARY_PREFIX, SUMMARY_REQUEST

from .bodies import HEADER, SEALED, events, read_error, render_full, responses, with_rows

USER: Any = {"role": "user", "content": "Do it."}
CALL: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT: Any = {"type": "function_call_output", "call_id": "c", "output": "done"}
TOOLS: Any = [{"type": "function", "name": "f"}]
TRIGGER: Any = {"type": "compaction_trigger"}
SUMMARY: tuple[Event, ...] = (
    Started(5),
    ReasoningDelta(0, "hm"),
    TextDelta(0, "It was "),
    ReasoningDelta(0, "hm"),
    TextDelta(0, "done."),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(5, 6)),
)
SILENT: tuple[Event, ...] = (
    Started(5),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(5, 0)),
)


def prompt(parsed: ResponsesCall) -> Conversation:
    found = parsed.call.requests[0].prompt
    assert isinstance(found, Conversation)
    return found


def compact(**fields: Any) -> ResponsesCall:
    return read_responses(json.dumps({"model": "m", **fields}).encode(), SEALED, compact=True)


def read_trigger() -> ResponsesCall:
    return responses(
        SEALED, input=[USER, CALL, RESULT, TRIGGER], tools=TOOLS, tool_choice="required"
    )


@pytest.mark.parametrize(
    "parsed",
    [read_trigger(), compact(input=[USER, CALL, RESULT], tools=TOOLS)],
    ids=("trigger", "endpoint"),
)
def test_compaction_request_asks_for_unconstrained_summary(parsed: ResponsesCall):
    conversation = prompt(parsed)
    request = parsed.call.requests[0]
    assert conversation.messages[-1] == SUMMARY_REQUEST
    assert [message.role for message in conversation.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert (conversation.tool_choice.mode, conversation.drop_oldest, request.constraint) == (
        "none",
        True,
        None,
    )
    assert request.limits.max_tokens


def test_stored_history_precedes_summary_request():
    request = read_trigger()
    items = [row for _, row in assign_ids(request.input, "resp_1")]
    assert with_rows(request, *items).call.requests == request.call.requests
    assert request.with_history([], request.input).call.requests == request.call.requests
    assert (
        prompt(with_rows(request, b'{"role":"user","content":"before"}', *items)).messages[-1]
        == SUMMARY_REQUEST
    )


@pytest.mark.parametrize("summary", [SUMMARY, SILENT], ids=("summary", "silent"))
def test_compaction_trigger_returns_one_item_streamed_and_full(summary: tuple[Event, ...]):
    call = read_trigger().call
    stream = events(call, *summary)
    assert [event["type"].removeprefix("response.") for event in stream] == [
        "created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done",
        "completed",
    ]  # fmt: skip
    (item,) = stream[-1]["response"]["output"]
    assert item == render_full(call, *summary)["output"][0] == stream[-2]["item"]
    assert (item["type"], item["encrypted_content"]) == (
        "compaction",
        "compaction:It was done." if summary is SUMMARY else "compaction:",
    )


def test_compact_endpoint_returns_user_messages_and_compaction():
    parsed = compact(input=[USER, CALL, RESULT, {"role": "assistant", "content": "Yes."}, USER])
    fold = ReplyBuilder()
    for event in SUMMARY:
        fold.feed(event)
    found = json.loads(
        parsed.create_compacted_writer(
            HEADER, [row for _, row in assign_ids(parsed.input, "resp_1")]
        ).render_full(fold.build())
    )
    assert list(found) == ["id", "object", "created_at", "output", "usage"]
    assert found["object"] == "response.compaction"
    assert [(item["type"], item.get("role")) for item in found["output"]] == [
        ("message", "user"), ("message", "user"), ("compaction", None),
    ]  # fmt: skip


def test_compaction_item_replaces_assistant_and_tool_items():
    item = {"type": "compaction", "encrypted_content": "compaction:It was done."}
    system = {"role": "system", "content": "Be brief."}
    parsed = responses(
        SEALED,
        input=[system, USER, CALL, RESULT, item, {"role": "user", "content": "And?"}],
        tools=TOOLS,
    )
    assert prompt(parsed).messages == (
        Message(Role.SYSTEM, (Text("Be brief."),)),
        Message(Role.USER, (Text("Do it."),)),
        Message(Role.ASSISTANT, (Text(SUMMARY_PREFIX + "It was done."),)),
        Message(Role.USER, (Text("And?"),)),
    )


@pytest.mark.parametrize("content", ["x", "reasoning:x"])
def test_foreign_compaction_item_is_rejected_by_name(content: str):
    item = {"type": "compaction", "encrypted_content": content}
    for options in (SEALED, None):
        with pytest.raises(RequestError) as rejected:
            responses(*([options] if options else []), input=[USER, item])
        assert rejected.value.param == "input[1].encrypted_content"


def test_compaction_trigger_must_be_last_and_needs_key():
    assert read_error(SEALED, input=[TRIGGER, USER]).param == "input[0]"
    assert isinstance(read_error(input=[USER, TRIGGER]), Unsupported)


def test_compact_endpoint_without_model_is_rejected():
    with pytest.raises(RequestError) as rejected:
        compact(input="x", model=None)
    assert rejected.value.param == "model"
