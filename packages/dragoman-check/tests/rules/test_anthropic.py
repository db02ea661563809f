"""The checker of the Messages grammar detects each broken rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman_check.rules.anthropic import check_error, check_object, check_stream
from dragoman_check.rules.json_values import Violation

Json = dict[str, Any]
NOTHING: Json = {}
USAGE: Json = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": None}
MESSAGE: Json = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": USAGE,
}  # fmt: skip
START: Json = {"type": "message_start", "message": MESSAGE}
PING: Json = {"type": "ping"}
STOP: Json = {"type": "message_stop"}
ERROR: Json = {"type": "error", "error": {"type": "api_error", "message": "m"}}
TEXT: Json = {"type": "text", "text": ""}
THINKING: Json = {"type": "thinking", "thinking": "", "signature": ""}
CALL: Json = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
BLOCK: Json = {"type": "text", "text": "x"}
CALLED: Json = {**CALL, "input": {"a": 1}}


def begin(block: Json, index: int = 0) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(kind: str, index: int = 0, **field: object) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **field}}


def end(index: int = 0) -> Json:
    return {"type": "content_block_stop", "index": index}


def finish(reason: str | None = "end_turn", sequence: str | None = None, **usage: object) -> Json:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 2, **usage}}


def sse(*events: Json) -> bytes:
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


SAY = [begin(TEXT), delta("text_delta", text="x"), end()]
THINK = [
    begin(THINKING),
    delta("thinking_delta", thinking="x"),
    delta("signature_delta", signature="s"),
    end(),
]
ASK = [
    begin(CALL),
    delta("input_json_delta", partial_json=""),
    delta("input_json_delta", partial_json='{"a":1}'),
    end(),
]
CUT = [begin(CALL), delta("input_json_delta", partial_json='{"a":'), end()]


@pytest.mark.parametrize(
    "events",
    [
        [START, *SAY, finish(), STOP],
        [START, finish(), STOP],
        [PING, START, PING, *SAY, PING, finish(), STOP, PING],
        [START, *THINK, finish(), STOP],
        [START, begin(THINKING), delta("signature_delta", signature=""), end(), finish(), STOP],
        [START, *ASK, finish("tool_use"), STOP],
        [START, begin(CALL), end(), finish("tool_use"), STOP],
        [START, *CUT, finish("max_tokens"), STOP],
        [START, *CUT, finish("stop_sequence", "END"), STOP],
        [START, begin({"type": "redacted_thinking", "data": "x"}), end(), finish(), STOP],
        [START, begin(TEXT), ERROR],
        [ERROR],
    ],
)
def test_check_stream_accepts_valid_stream(events: list[Json]):
    assert check_stream(b": hi\n\n" + sse(*events)) == [event for event in events if event != PING]


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ([], "without message_stop"),
        ([START, *SAY, finish()], "without message_stop"),
        ([START, *SAY, STOP], "without message_delta"),
        ([*SAY, finish(), STOP], "message_start must be the first event"),
        ([START, START], "message_start must be the first event"),
        ([START, finish(), finish(), STOP], "after message_delta"),
        ([START, finish(), STOP, STOP], "after message_stop"),
        ([START, ERROR, STOP], "after an error"),
        ([START, {"type": "vendor"}], "an event of type 'vendor'"),
        ([START, begin(TEXT), begin(TEXT, 1)], "while another is open"),
        ([START, begin(TEXT, 1)], "expected 0"),
        ([START, *SAY, begin(TEXT)], "expected 1"),
        ([START, delta("text_delta", text="x")], "not open"),
        ([START, begin(TEXT), delta("text_delta", 1, text="x")], "not open"),
        ([START, end()], "not open"),
        ([START, begin(TEXT), finish(), STOP], "while a block is open"),
        ([START, begin(BLOCK)], "begins with"),
        ([START, begin(CALLED)], "begins with"),
        ([START, begin({**CALL, "id": ""})], "without id or name"),
        ([START, begin({"type": "video"})], "a block of type 'video'"),
        ([START, begin({"type": {}})], "a block of type {}"),
        ([START, begin({"type": "redacted_thinking"})], "data is None"),
        ([START, begin(TEXT), delta("text_delta", text="")], "an empty delta"),
        ([START, begin(TEXT), delta("text_delta", text=None)], "expected a string"),
        ([START, begin(TEXT), delta("input_json_delta", partial_json="x")], "in a text block"),
        ([START, begin(CALL), *[delta("input_json_delta", partial_json="")] * 2], "an empty delta"),
        ([START, *THINK[:2], end()], "without a signature_delta"),
        ([START, *THINK[:3], THINK[1]], "after the signature"),
        ([START, *CUT, finish("tool_use"), STOP], "not JSON"),
        ([START, *CUT, begin(CALL, 1), end(1), finish("max_tokens"), STOP], "not JSON"),
        (
            [
                START,
                begin(CALL),
                delta("input_json_delta", partial_json="[]"),
                end(),
                finish("tool_use"),
            ],
            "an object",
        ),
        (
            [
                START,
                begin(CALL),
                delta("input_json_delta", partial_json='{"a":NaN}'),
                end(),
                finish("tool_use"),
            ],
            "not JSON",
        ),
        (
            [
                START,
                begin(CALL),
                delta("input_json_delta", partial_json="[" * 9999),
                end(),
                finish("tool_use"),
            ],
            "not JSON",
        ),
        ([START, finish("tool_use")], "without a call"),
        ([START, finish("stop")], "stop_reason is 'stop'"),
        ([START, finish(None)], "stop_reason is None"),
        ([START, finish("stop_sequence")], "contradict"),
        ([START, finish("end_turn", "END")], "contradict"),
        ([START, {**finish(), "delta": {"stop_reason": "end_turn"}}], "has no stop_sequence"),
        ([START, finish(output_tokens=None)], "usage.output_tokens"),
        ([START, finish(input_tokens=-1)], "usage.input_tokens"),
        ([START, finish(output_tokens_details={"thinking_tokens": 3})], "more thinking_tokens"),
        ([START | {"message": MESSAGE | {"content": [BLOCK]}}], "has content"),
        ([START | {"message": MESSAGE | {"stop_reason": "end_turn"}}], "has a stop_reason"),
        ([START | {"message": MESSAGE | {"role": "user"}}], "role is"),
        ([START | {"message": MESSAGE | {"type": "x"}}], "type is"),
        ([START | {"message": MESSAGE | {"id": ""}}], "id is empty"),
        ([START | {"message": MESSAGE | {"usage": {"output_tokens": 1}}}], "usage.input_tokens"),
        ([ERROR | {"error": {"type": "server_error", "message": "m"}}], "error.type"),
        ([ERROR | {"error": {"type": "api_error", "message": ""}}], "is empty"),
    ],
)
def test_check_stream_rejects_each_rule_violation(events: list[Json], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*events))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b'data: {"type":"ping"}\n\n', "without a name"),
        (b'event: ping\ndata: {"type":"pong"}\n\n', "says that it is 'pong'"),
        (b"event: ping\n\n", "without a name"),
        (b"event: ping\nid: 1\n\n", "not a data event"),
        (b'event: ping\ndata: {"type":"ping"}\n', "inside an event"),
        (b"event: ping\ndata: ping\n\n", "not JSON"),
        (b"data: [DONE]\n\n", "without a name"),
        ('event: ping\ndata: {"type":"ping","a":"\u2028"}\n\n'.encode(), "several lines"),
    ],
)
def test_check_stream_rejects_event_name_violations(data: bytes, rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(data)


def build_object(*content: Json, reason: str = "end_turn", **more: object) -> Json:
    return {**MESSAGE, "content": list(content), "stop_reason": reason, **more}


def test_check_object_and_error_accept_valid_bodies():
    check_object(build_object())
    check_object(
        build_object(
            {"type": "thinking", "thinking": "", "signature": "s"}, BLOCK, CALLED, reason="tool_use"
        )
    )
    check_object(build_object(BLOCK, reason="stop_sequence", stop_sequence="END"))
    check_error({**ERROR, "request_id": "req_1"})


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (build_object(TEXT), "an empty text"),
        (build_object({"type": "video"}), "is of type 'video'"),
        (build_object({**CALLED, "input": "{}"}, reason="tool_use"), "input is '{}'"),
        (build_object({**CALLED, "name": ""}, reason="tool_use"), "name is empty"),
        (build_object({"type": "thinking", "thinking": "x"}), "signature"),
        (build_object({"type": "redacted_thinking"}), "data"),
        (build_object(BLOCK, reason="tool_use"), "without a call"),
        (build_object(BLOCK, reason="stop"), "stop_reason is 'stop'"),
        (build_object(BLOCK, stop_sequence="END"), "contradict"),
        (build_object(BLOCK, usage=NOTHING), "usage.input_tokens"),
        (build_object(BLOCK, role="user"), "role is"),
    ],
)
def test_check_object_rejects_each_rule_violation(message: Json, rule: str):
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
def test_check_error_rejects_each_rule_violation(body: Json, rule: str):
    with pytest.raises(Violation, match=rule):
        check_error(body)
