"""The checker of the Messages grammar detects each broken rule."""

from __future__ import annotations

import json

import pytest

from dragoman_check.rules.anthropic import check_error, check_object, check_stream
from dragoman_check.rules.json_values import JsonObject, Violation

EMPTY_OBJECT: JsonObject = {}
USAGE: JsonObject = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": None}
MESSAGE: JsonObject = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": USAGE,
}
START: JsonObject = {"type": "message_start", "message": MESSAGE}
PING: JsonObject = {"type": "ping"}
STOP: JsonObject = {"type": "message_stop"}
ERROR: JsonObject = {"type": "error", "error": {"type": "api_error", "message": "m"}}
TEXT: JsonObject = {"type": "text", "text": ""}
THINKING: JsonObject = {"type": "thinking", "thinking": "", "signature": ""}
CALL: JsonObject = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
SEARCH: JsonObject = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
LINK: JsonObject = {
    "type": "web_search_result",
    "url": "https://a.example",
    "title": "A",
    "encrypted_content": "",
}
FOUND: JsonObject = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [LINK]}
CITATION: JsonObject = {
    "type": "web_search_result_location",
    "url": "https://a.example",
    "title": None,
    "encrypted_index": "",
    "cited_text": "x",
}
RUN: JsonObject = {**SEARCH, "name": "code_execution"}
OUTPUT: JsonObject = {
    "type": "code_execution_result",
    "stdout": "1",
    "stderr": "",
    "return_code": 0,
    "content": [],
}
RAN: JsonObject = {
    "type": "code_execution_tool_result",
    "tool_use_id": "s",
    "content": OUTPUT,
}
NONEMPTY_TEXT: JsonObject = {"type": "text", "text": "x"}
CALL_WITH_INPUT: JsonObject = {**CALL, "input": {"a": 1}}


def start_block(block: JsonObject, index: int = 0) -> JsonObject:
    return {"type": "content_block_start", "index": index, "content_block": block}


def build_delta(kind: str, index: int = 0, **field: object) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **field}}


def stop_block(index: int = 0) -> JsonObject:
    return {"type": "content_block_stop", "index": index}


def build_message_delta(
    reason: str | None = "end_turn", sequence: str | None = None, **usage: object
) -> JsonObject:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 2, **usage}}


def encode_events(*events: JsonObject) -> bytes:
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


TEXT_EVENTS = [start_block(TEXT), build_delta("text_delta", text="x"), stop_block()]
THINKING_EVENTS = [
    start_block(THINKING),
    build_delta("thinking_delta", thinking="x"),
    build_delta("signature_delta", signature="s"),
    stop_block(),
]
TOOL_USE_EVENTS = [
    start_block(CALL),
    build_delta("input_json_delta", partial_json=""),
    build_delta("input_json_delta", partial_json='{"a":1}'),
    stop_block(),
]
SEARCH_EVENTS = [start_block(SEARCH), stop_block(), start_block(FOUND, 1), stop_block(1)]
TRUNCATED_TOOL_USE = [
    start_block(CALL),
    build_delta("input_json_delta", partial_json='{"a":'),
    stop_block(),
]


@pytest.mark.parametrize(
    "events",
    [
        [START, *TEXT_EVENTS, build_message_delta(), STOP],
        [START, build_message_delta(), STOP],
        [PING, START, PING, *TEXT_EVENTS, PING, build_message_delta(), STOP, PING],
        [START, *THINKING_EVENTS, build_message_delta(), STOP],
        [
            START,
            start_block(THINKING),
            build_delta("signature_delta", signature=""),
            stop_block(),
            build_message_delta(),
            STOP,
        ],
        [START, *TOOL_USE_EVENTS, build_message_delta("tool_use"), STOP],
        [START, start_block(CALL), stop_block(), build_message_delta("tool_use"), STOP],
        [START, *SEARCH_EVENTS, build_message_delta(), STOP],
        [
            START,
            *TEXT_EVENTS[:2],
            build_delta("citations_delta", citation=CITATION),
            stop_block(),
            build_message_delta(),
            STOP,
        ],
        [START, *SEARCH_EVENTS[:2], build_message_delta("pause_turn"), STOP],
        [START, *TRUNCATED_TOOL_USE, build_message_delta("max_tokens"), STOP],
        [START, *TRUNCATED_TOOL_USE, build_message_delta("stop_sequence", "END"), STOP],
        [
            START,
            start_block({"type": "redacted_thinking", "data": "x"}),
            stop_block(),
            build_message_delta(),
            STOP,
        ],
        [START, start_block(TEXT), ERROR],
        [ERROR],
    ],
)
def test_check_stream_accepts_valid_stream(events: list[JsonObject]):
    assert check_stream(b": hi\n\n" + encode_events(*events)) == [
        event for event in events if event != PING
    ]


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([], "without message_stop"),
        ([START, *TEXT_EVENTS, build_message_delta()], "without message_stop"),
        ([START, *TEXT_EVENTS, STOP], "without message_delta"),
        ([*TEXT_EVENTS, build_message_delta(), STOP], "message_start must be the first event"),
        ([START, START], "message_start must be the first event"),
        ([START, build_message_delta(), build_message_delta(), STOP], "follows message_delta"),
        ([START, build_message_delta(), STOP, STOP], "follows message_stop"),
        ([START, ERROR, STOP], "follows an error"),
        ([START, {"type": "vendor"}], "an event of type 'vendor'"),
        ([START, start_block(TEXT), start_block(TEXT, 1)], "while another is open"),
        ([START, start_block(TEXT, 1)], "expected 0"),
        ([START, *TEXT_EVENTS, start_block(TEXT)], "expected 1"),
        ([START, build_delta("text_delta", text="x")], "not open"),
        ([START, start_block(TEXT), build_delta("text_delta", 1, text="x")], "not open"),
        ([START, stop_block()], "not open"),
        ([START, start_block(TEXT), build_message_delta(), STOP], "while a block is open"),
        ([START, start_block(NONEMPTY_TEXT)], "does not start empty"),
        ([START, start_block(CALL_WITH_INPUT)], "does not start empty"),
        ([START, start_block({**CALL, "id": ""})], "without id or name"),
        ([START, start_block({"type": "video"})], "a block of type 'video'"),
        ([START, start_block({"type": {}})], "a block of type {}"),
        ([START, start_block({"type": "redacted_thinking"})], "data is None"),
        ([START, start_block(TEXT), build_delta("text_delta", text="")], "an empty delta"),
        ([START, start_block(TEXT), build_delta("text_delta", text=None)], "expected a string"),
        (
            [START, start_block(TEXT), build_delta("input_json_delta", partial_json="x")],
            "in a text block",
        ),
        (
            [START, start_block(CALL), *[build_delta("input_json_delta", partial_json="")] * 2],
            "an empty delta",
        ),
        ([START, *THINKING_EVENTS[:2], stop_block()], "without a signature_delta"),
        ([START, *THINKING_EVENTS[:3], THINKING_EVENTS[1]], "after the signature"),
        ([START, *TRUNCATED_TOOL_USE, build_message_delta("tool_use"), STOP], "not JSON"),
        (
            [
                START,
                *TRUNCATED_TOOL_USE,
                start_block(CALL, 1),
                stop_block(1),
                build_message_delta("max_tokens"),
                STOP,
            ],
            "not JSON",
        ),
        (
            [
                START,
                start_block(CALL),
                build_delta("input_json_delta", partial_json="[]"),
                stop_block(),
                build_message_delta("tool_use"),
            ],
            "an object",
        ),
        (
            [
                START,
                start_block(CALL),
                build_delta("input_json_delta", partial_json='{"a":NaN}'),
                stop_block(),
                build_message_delta("tool_use"),
            ],
            "not JSON",
        ),
        (
            [
                START,
                start_block(CALL),
                build_delta("input_json_delta", partial_json="[" * 9999),
                stop_block(),
                build_message_delta("tool_use"),
            ],
            "not JSON",
        ),
        ([START, build_message_delta("tool_use")], "without a tool_use block"),
        ([START, *SEARCH_EVENTS[:2], build_message_delta()], "without a result"),
        ([START, start_block(FOUND), stop_block(), build_message_delta()], "no open call"),
        ([START, start_block({**FOUND, "content": "x"})], "expected"),
        ([START, start_block(TEXT), build_delta("citations_delta", citation=LINK)], "cited_text"),
        (
            [START, build_message_delta(server_tool_use={"web_search_requests": -1})],
            "web_search_requests",
        ),
        ([START, build_message_delta("stop")], "stop_reason is 'stop'"),
        ([START, build_message_delta(None)], "stop_reason is None"),
        ([START, build_message_delta("stop_sequence")], "contradict"),
        ([START, build_message_delta("end_turn", "END")], "contradict"),
        (
            [START, {**build_message_delta(), "delta": {"stop_reason": "end_turn"}}],
            "has no stop_sequence",
        ),
        ([START, build_message_delta(output_tokens=None)], "usage.output_tokens"),
        ([START, build_message_delta(input_tokens=-1)], "usage.input_tokens"),
        (
            [START, build_message_delta(output_tokens_details={"thinking_tokens": 3})],
            "more thinking_tokens",
        ),
        ([START | {"message": MESSAGE | {"content": [NONEMPTY_TEXT]}}], "has content"),
        ([START | {"message": MESSAGE | {"stop_reason": "end_turn"}}], "has a stop_reason"),
        ([START | {"message": MESSAGE | {"role": "user"}}], "role is"),
        ([START | {"message": MESSAGE | {"type": "x"}}], "type is"),
        ([START | {"message": MESSAGE | {"id": ""}}], "id is empty"),
        ([START | {"message": MESSAGE | {"usage": {"output_tokens": 1}}}], "usage.input_tokens"),
        ([ERROR | {"error": {"type": "server_error", "message": "m"}}], "error.type"),
        ([ERROR | {"error": {"type": "api_error", "message": ""}}], "is empty"),
    ],
)
def test_check_stream_rejects_each_rule_violation(events: list[JsonObject], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_events(*events))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b'data: {"type":"ping"}\n\n', "has no name"),
        (b'event: ping\ndata: {"type":"pong"}\n\n', "has the type 'pong'"),
        (b"event: ping\n\n", "has no name"),
        (b"event: ping\nid: 1\n\n", "not a data event"),
        (b'event: ping\ndata: {"type":"ping"}\n', "inside an event"),
        (b"event: ping\ndata: ping\n\n", "not JSON"),
        (b"data: [DONE]\n\n", "has no name"),
        ('event: ping\ndata: {"type":"ping","a":"\u2028"}\n\n'.encode(), "several lines"),
    ],
)
def test_check_stream_rejects_event_name_violations(data: bytes, rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(data)


def build_object(*content: JsonObject, reason: str = "end_turn", **more: object) -> JsonObject:
    return {**MESSAGE, "content": list(content), "stop_reason": reason, **more}


def test_check_object_and_error_accept_valid_bodies():
    check_object(build_object())
    check_object(
        build_object(
            {"type": "thinking", "thinking": "", "signature": "s"},
            NONEMPTY_TEXT,
            CALL_WITH_INPUT,
            reason="tool_use",
        )
    )
    check_object(build_object(NONEMPTY_TEXT, reason="stop_sequence", stop_sequence="END"))
    check_object(build_object(SEARCH, FOUND, RUN, RAN))
    check_object(build_object(SEARCH, reason="max_tokens"))
    check_error({**ERROR, "request_id": "req_1"})


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (build_object(TEXT), "an empty text"),
        (build_object({"type": "video"}), "is of type 'video'"),
        (build_object({**CALL_WITH_INPUT, "input": "{}"}, reason="tool_use"), "input is '{}'"),
        (build_object({**CALL_WITH_INPUT, "name": ""}, reason="tool_use"), "name is empty"),
        (build_object({"type": "thinking", "thinking": "x"}), "signature"),
        (build_object({"type": "redacted_thinking"}), "data"),
        (build_object(NONEMPTY_TEXT, reason="tool_use"), "without a tool_use block"),
        (build_object({**NONEMPTY_TEXT, "citations": [LINK]}), "cited_text"),
        (build_object(SEARCH), "without a result"),
        (build_object(SEARCH, FOUND, FOUND), "no open call"),
        (build_object(SEARCH, {**FOUND, "content": [{**LINK, "url": None}]}), "url"),
        (build_object(SEARCH, {**FOUND, "content": [NONEMPTY_TEXT]}), "a result of type 'text'"),
        (build_object(SEARCH, {**FOUND, "content": OUTPUT}), "code_execution_result"),
        (build_object(RUN, {**RAN, "content": {**OUTPUT, "return_code": True}}), "return_code"),
        (
            build_object(
                RUN,
                {
                    **RAN,
                    "content": {
                        "type": "code_execution_tool_result_error",
                        "error_code": "max_uses_exceeded",
                    },
                },
            ),
            "error_code",
        ),
        (build_object(NONEMPTY_TEXT, reason="stop"), "stop_reason is 'stop'"),
        (build_object(NONEMPTY_TEXT, stop_sequence="END"), "contradict"),
        (build_object(NONEMPTY_TEXT, usage=EMPTY_OBJECT), "usage.input_tokens"),
        (build_object(NONEMPTY_TEXT, role="user"), "role is"),
    ],
)
def test_check_object_rejects_each_rule_violation(message: JsonObject, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object(message)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"error": ERROR["error"]}, "type is None"),
        ({**ERROR, "request_id": None}, "request_id"),
        ({"type": "error", "error": "x"}, "expected an object"),
    ],
)
def test_check_error_rejects_each_rule_violation(body: JsonObject, rule: str):
    with pytest.raises(Violation, match=rule):
        check_error(body)
