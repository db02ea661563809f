"""Odd answers of servers with Anthropic's Messages API, and what each of them means."""

from __future__ import annotations

import json
from typing import Any

from tests.engines.upstream.client_answers import Answer, Failure
from tests.engines.upstream.odd_stream import (
    ADD,
    CONTRADICTION,
    CUT_OFF,
    FAILED,
    OVERLOADED,
    Case,
    sse,
)

START: dict[str, Any] = {
    "type": "message_start",
    "message": {"id": "msg_1", "content": [], "usage": {}},
}
STOP = {"type": "message_stop"}


def start(*content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {"id": "msg_1", "content": content, **fields}}


def begin(index: int | None = 0, /, **block: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_start", **place, "content_block": block}


def delta(index: int | None = 0, /, **fields: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_delta", **place, "delta": fields}


def text(text: Any, index: int | None = 0) -> dict[str, Any]:
    return delta(index, type="text_delta", text=text)


def end(index: int | None = 0) -> dict[str, Any]:
    return {"type": "content_block_stop"} | ({} if index is None else {"index": index})


def finish(reason: str | None = "end_turn", **fields: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, **fields}


def use(index: int = 0, input: Any = None, name: str = "add", **fields: Any) -> dict[str, Any]:
    block: dict[str, Any] = {
        "type": "tool_use",
        "id": f"t{index}",
        "name": name,
        "input": input or {},
    }
    return begin(index, **{**block, **fields})


def piece(json_text: Any, index: int = 0) -> dict[str, Any]:
    return delta(index, type="input_json_delta", partial_json=json_text)


def build(name: str, expected: Answer | Failure, *events: Any, **options: Any) -> Case:
    return Case("anthropic", name, sse(*events, **options), expected)


def whole(name: str, expected: Answer | Failure, body: dict[str, Any]) -> Case:
    return Case("anthropic", name, json.dumps(body).encode(), expected, "application/json")


TEXT = begin(type="text", text="")
AB = (TEXT, text("ab"), end())
PING = {"type": "ping"}
TEXTS = (
    build(
        "whole block in its end",
        Answer("abc"),
        START,
        TEXT,
        text("ab"),
        {**end(), "content_block": {"type": "text", "text": "abc"}},
        finish(),
        STOP,
    ),
    build("block without a type", Answer("ab"), START, begin(text="ab"), end(), finish(), STOP),
    build(
        "text in message_delta",
        Failure("out of order"),
        START,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "text": "ab"}},
        STOP,
    ),
    build("plain", Answer("ab"), START, PING, *AB, finish(), STOP),
    build("DONE at the end", Answer("ab"), START, *AB, finish(), "[DONE]", STOP),
    build("no message_start", Failure("out of order"), *AB, finish(), STOP),
    build("no message_stop", CUT_OFF, START, *AB, finish()),
    build("no stop reason", CUT_OFF, START, *AB, STOP),
    build("nothing", CUT_OFF),
    build("message_start twice", Answer("ab"), START, START, *AB, finish(), STOP),
    build("message_delta twice", Answer("ab"), START, *AB, finish(), finish(), STOP),
    build(
        "message_delta with null",
        Answer("ab"),
        START,
        *AB,
        finish(None),
        finish(),
        finish(None),
        STOP,
    ),
    build(
        "another reason", Failure("max_tokens"), START, *AB, finish(), finish("max_tokens"), STOP
    ),
    build("unknown reason", Failure("grown_tired"), START, *AB, finish("grown_tired"), STOP),
    build("max_tokens", Answer("ab", reason="length"), START, *AB, finish("max_tokens"), STOP),
    build("refusal", Answer("ab", reason="content_filter"), START, *AB, finish("refusal"), STOP),
    build(
        "stop_sequence",
        Answer("ab"),
        START,
        *AB,
        {
            "type": "message_delta",
            "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
        },
        STOP,
    ),
    build(
        "content after the reason",
        Failure("out of order"),
        START,
        *AB,
        finish(),
        begin(1, type="text", text=""),
        text("cd", 1),
        end(1),
        STOP,
    ),
    build(
        "text in the block's start",
        Answer("ab"),
        START,
        begin(type="text", text="a"),
        text("b"),
        end(),
        finish(),
        STOP,
    ),
    build(
        "text in the block's start alone",
        Answer("ab"),
        START,
        begin(type="text", text="ab"),
        end(),
        finish(),
        STOP,
    ),
    build(
        "content in message_start",
        Answer("ab"),
        start({"type": "text", "text": "ab"}),
        finish(),
        STOP,
    ),
    build(
        "content in message_start, then more",
        Answer("abcd"),
        start({"type": "text", "text": "ab"}),
        begin(1, type="text", text=""),
        text("cd", 1),
        end(1),
        finish(),
        STOP,
    ),
    build(
        "content in message_start, then once more",
        Failure("block 0 twice"),
        start({"type": "text", "text": "ab"}),
        *AB,
        finish(),
        STOP,
    ),
    build(
        "whole message in message_start",
        Answer("ab"),
        start({"type": "text", "text": "ab"}, stop_reason="end_turn"),
        STOP,
    ),
    build(
        "content that is a string",
        Answer("ab"),
        {"type": "message_start", "message": {"content": "ab"}},
        finish(),
        STOP,
    ),
    build(
        "whole message in message_stop",
        Answer("abcd"),
        START,
        *AB,
        finish(None),
        {
            **STOP,
            "message": {"content": [{"type": "text", "text": "abcd"}], "stop_reason": "end_turn"},
        },
    ),
    build(
        "whole message that contradicts",
        CONTRADICTION,
        START,
        *AB,
        finish(None),
        {
            **STOP,
            "message": {"content": [{"type": "text", "text": "xy"}], "stop_reason": "end_turn"},
        },
    ),
    build(
        "block that never ends",
        Answer("abcd"),
        START,
        TEXT,
        text("ab"),
        begin(1, type="text", text=""),
        text("cd", 1),
        finish(),
        STOP,
    ),
    build("block that ends twice", Answer("ab"), START, *AB, end(), finish(), STOP),
    build(
        "block that starts twice",
        Answer("ab"),
        START,
        TEXT,
        TEXT,
        text("ab"),
        end(),
        finish(),
        STOP,
    ),
    build(
        "all blocks numbered 0", Answer("abcd"), START, *AB, TEXT, text("cd"), end(), finish(), STOP
    ),
    build(
        "no indexes",
        Answer("abcd"),
        START,
        begin(None, type="text", text=""),
        text("ab", None),
        end(None),
        begin(None, type="text", text=""),
        text("cd", None),
        end(None),
        finish(),
        STOP,
    ),
    build(
        "indexes that are strings",
        Answer("ab"),
        START,
        {**TEXT, "index": "0"},
        {**text("ab"), "index": "0"},
        end(),
        finish(),
        STOP,
    ),
    build(
        "indexes that begin at 1",
        Answer("ab"),
        START,
        begin(1, type="text", text=""),
        text("ab", 1),
        end(1),
        finish(),
        STOP,
    ),
    build("delta of no block", Failure("out of order"), START, text("ab"), finish(), STOP),
    build(
        "delta of another block",
        Failure("out of order"),
        START,
        TEXT,
        text("ab", 7),
        finish(),
        STOP,
    ),
    build(
        "interleaved texts",
        Failure("out of order"),
        START,
        TEXT,
        text("a"),
        begin(1, type="text", text=""),
        text("x", 1),
        text("b"),
        end(),
        end(1),
        finish(),
        STOP,
    ),
    build(
        "delta without a type", Answer("ab"), START, TEXT, delta(text="ab"), end(), finish(), STOP
    ),
    build(
        "null fields",
        Answer("ab"),
        START,
        begin(type="text", text=None, citations=None),
        text(None),
        text("ab"),
        end(),
        finish(usage=None),
        STOP,
    ),
    build(
        "citations",
        Answer("ab"),
        START,
        TEXT,
        text("ab"),
        delta(type="citations_delta", citation={"x": 1}),
        end(),
        finish(),
        STOP,
    ),
    build("unknown events", Answer("ab"), START, {"type": "new"}, *AB, finish(), STOP),
    build(
        "hosted tool",
        Answer("ab"),
        START,
        begin(type="server_tool_use", id="s", name="web_search", input={}),
        piece('{"q":1}'),
        end(),
        begin(1, type="text", text=""),
        text("ab", 1),
        end(1),
        finish(),
        STOP,
    ),
    build(
        "text that is a part",
        Answer("ab"),
        START,
        TEXT,
        text({"type": "text", "text": "ab"}),
        end(),
        finish(),
        STOP,
    ),
    build(
        "split surrogate pair",
        Answer("a😀"),
        START,
        TEXT,
        r'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud83d"}}',
        r'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\ude00"}}',
        end(),
        finish(),
        STOP,
    ),
    build(
        "lone surrogate",
        Answer("a\ufffdb"),
        START,
        TEXT,
        r'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud83d"}}',
        text("b"),
        end(),
        finish(),
        STOP,
    ),
    build(
        "half a pair at the end",
        Answer("a\ufffd"),
        START,
        TEXT,
        r'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\ud83d"}}',
        end(),
        finish(),
        STOP,
    ),
    build(
        "types as event names alone",
        Answer("ab"),
        {"message": {}},
        {"index": 0, "content_block": {"type": "text", "text": ""}},
        {"index": 0, "delta": {"text": "ab"}},
        {"index": 0},
        {"delta": {"stop_reason": "end_turn"}},
        {},
        names=[
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ],
    ),
    build(
        "CRLF, comments and retry",
        Answer("ab"),
        START,
        *AB,
        finish(),
        STOP,
        line_end="\r\n",
        prefix=": hi\r\nretry: 5\r\n\r\n",
    ),
    build("no blank line at the end", Answer("ab"), START, *AB, finish(), STOP, ends=False),
    build("event that is not JSON", Failure("invalid event"), START, *AB, "oops", finish(), STOP),
)
THINKING = begin(type="thinking", thinking="", signature="")
THOUGHTS = (
    build(
        "thinking",
        Answer("ab", "hm"),
        START,
        THINKING,
        delta(type="thinking_delta", thinking="hm"),
        delta(type="signature_delta", signature="c2ln"),
        end(),
        begin(1, type="text", text=""),
        text("ab", 1),
        end(1),
        finish(),
        STOP,
    ),
    build(
        "thinking in the block's start",
        Answer("", "hm"),
        START,
        begin(type="thinking", thinking="hm", signature="c2ln"),
        end(),
        finish(),
        STOP,
    ),
    build(
        "thinking without an end",
        Answer("ab", "hm"),
        START,
        THINKING,
        delta(type="thinking_delta", thinking="hm"),
        begin(1, type="text", text=""),
        text("ab", 1),
        end(1),
        finish(),
        STOP,
    ),
    build(
        "redacted thinking",
        Answer("ab"),
        START,
        begin(type="redacted_thinking", data="ZGF0YQ=="),
        end(),
        begin(1, type="text", text="ab"),
        end(1),
        finish(),
        STOP,
    ),
    build(
        "thinking in message_start",
        Answer("ab", "hm"),
        start(
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            {"type": "text", "text": "ab"},
        ),
        finish(),
        STOP,
    ),
)
CALLS = (
    build(
        "call",
        Answer(calls=ADD),
        START,
        use(),
        piece('{"a"'),
        piece(":1}"),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "call without input",
        Answer(calls=(("add", "{}"),)),
        START,
        use(),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "call with empty pieces",
        Answer(calls=(("add", "{}"),)),
        START,
        use(),
        piece(""),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "call with null input",
        Answer(calls=ADD),
        START,
        begin(type="tool_use", id="t", name="add", input=None),
        piece('{"a":1}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "input in the block's start",
        Answer(calls=ADD),
        START,
        use(input={"a": 1}),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "input in the start and in deltas",
        Answer(calls=ADD),
        START,
        use(input={"a": 1}),
        piece('{"a": 1}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "input that contradicts",
        CONTRADICTION,
        START,
        use(input={"a": 1}),
        piece('{"a": 2}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "input that is text",
        Answer(calls=ADD),
        START,
        use(input='{"a":1}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "input that is a list",
        Failure("not an object"),
        START,
        use(input=[1]),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "partial_json that is an object",
        Answer(calls=ADD),
        START,
        use(),
        piece({"a": 1}),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "call in message_start",
        Answer("ab", calls=ADD),
        start(
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}},
            stop_reason="tool_use",
        ),
        STOP,
    ),
    build(
        "call that never ends",
        Answer(calls=ADD),
        START,
        use(),
        piece('{"a":1}'),
        finish("tool_use"),
        STOP,
    ),
    build(
        "call that ends with end_turn",
        Answer(calls=ADD),
        START,
        use(),
        piece('{"a":1}'),
        end(),
        finish("end_turn"),
        STOP,
    ),
    build(
        "two calls",
        Answer(calls=(("add", "{}"), ("get_weather", "{}"))),
        START,
        use(),
        end(),
        use(1, name="get_weather"),
        end(1),
        finish("tool_use"),
        STOP,
    ),
    build(
        "interleaved calls",
        Answer(calls=(*ADD, ("get_weather", "{}"))),
        START,
        use(),
        use(1, name="get_weather"),
        piece('{"a"'),
        piece("{", 1),
        piece(":1}"),
        piece("}", 1),
        end(),
        end(1),
        finish("tool_use"),
        STOP,
    ),
    build(
        "text after an open call",
        Answer("ab", calls=ADD),
        START,
        use(),
        piece('{"a"'),
        begin(1, type="text", text=""),
        text("ab", 1),
        piece(":1}"),
        end(),
        end(1),
        finish("tool_use"),
        STOP,
    ),
    build(
        "no id",
        Answer(calls=ADD),
        START,
        use(id=None),
        piece('{"a":1}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "no name",
        Failure("without a name"),
        START,
        use(name=""),
        piece('{"a":1}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "arguments in a text block",
        Failure("outside of a tool call"),
        START,
        TEXT,
        piece('{"a":1}'),
        end(),
        finish(),
        STOP,
    ),
    build(
        "text in a call",
        Failure("text within a tool call"),
        START,
        use(),
        text("ab"),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build(
        "call that is repeated",
        Failure("twice"),
        START,
        use(),
        piece('{"a":1}'),
        end(),
        use(),
        piece('{"a":1}'),
        end(),
        finish("tool_use"),
        STOP,
    ),
    build("reason of a call without one", Failure("sent no call"), START, finish("tool_use"), STOP),
    build(
        "surrogate in the input",
        Answer(calls=(("add", '{"a": "\\ufffd"}'),)),
        START,
        r'{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"add","input":{"a":"\ud83d"}}}',
        end(),
        finish("tool_use"),
        STOP,
    ),
)
ERRORS = (
    build(
        "error event",
        FAILED,
        START,
        *AB,
        {"type": "error", "error": {"type": "api_error", "message": "boom"}},
    ),
    build(
        "overloaded",
        OVERLOADED,
        START,
        *AB,
        {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}},
    ),
    build(
        "overloaded before any content",
        OVERLOADED,
        {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}},
    ),
    build(
        "error of code 529",
        OVERLOADED,
        START,
        {"type": "error", "error": {"type": "api_error", "message": "boom", "code": 529}},
    ),
    build("error text", FAILED, START, {"type": "error", "error": "boom"}),
    build(
        "error in OpenAI's form",
        FAILED,
        START,
        *AB,
        {"error": {"message": "boom", "type": "server_error"}},
    ),
    build(
        "error as a named event",
        FAILED,
        START,
        '{"message": "boom"}',
        names=["message_start", "error"],
    ),
    build("error as a message", FAILED, START, {"type": "error", "message": "boom"}),
)
WHOLE = (
    Case(
        "anthropic",
        "JSON that is called a stream",
        json.dumps(
            {
                "type": "message",
                "content": [{"type": "text", "text": "ab"}],
                "stop_reason": "end_turn",
            },
            indent=2,
        ).encode(),
        Answer("ab"),
    ),
    Case(
        "anthropic",
        "named error in a stream that is called JSON",
        sse(START, *AB, '{"message": "boom"}', names=["message_start", "", "", "", "error"]),
        FAILED,
        "application/json",
    ),
    Case(
        "anthropic",
        "stream that is called JSON",
        sse(START, *AB, finish(), STOP),
        Answer("ab"),
        "application/json",
    ),
    whole(
        "message that is not streamed",
        Answer("ab", "hm", calls=ADD),
        {
            "type": "message",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "text", "text": "ab"},
                {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
    ),
    whole(
        "message without a reason",
        CUT_OFF,
        {"type": "message", "content": [{"type": "text", "text": "ab"}], "stop_reason": None},
    ),
    whole(
        "error that is not streamed",
        OVERLOADED,
        {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}},
    ),
)
CASES = (*TEXTS, *THOUGHTS, *CALLS, *ERRORS, *WHOLE)
