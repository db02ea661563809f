"""Odd answers of servers with Chat Completions, and what each of them means."""

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

DONE = "[DONE]"
STOP: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **fields}]}


def end(reason: str, **fields: Any) -> dict[str, Any]:
    return choice(delta={}, finish_reason=reason, **fields)


def call(arguments: Any = None, name: str | None = None, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"function": {key: value for key, value in function.items() if value is not None}} | {
        "index": 0,
        **fields,
    }


def calls(*entries: dict[str, Any]) -> dict[str, Any]:
    return delta(tool_calls=list(entries))


CALL_END = end("tool_calls")


def build(name: str, expected: Answer | Failure, *events: Any, **options: Any) -> Case:
    return Case("compatible", name, sse(*events, **options), expected)


TEXTS = (
    build(
        "plain",
        Answer("ab"),
        delta(role="assistant", content=""),
        delta(content="a"),
        delta(content="b"),
        STOP,
        DONE,
    ),
    build("no DONE", Answer("ab"), delta(content="ab"), STOP),
    build("DONE with spaces", Answer("ab"), delta(content="ab"), STOP, "[DONE] "),
    build("no finish reason", CUT_OFF, delta(content="ab"), DONE),
    build("nothing at all", CUT_OFF),
    build("only DONE", CUT_OFF, DONE),
    build(
        "content after the reason",
        Answer("abcd"),
        delta(content="ab"),
        STOP,
        delta(content="cd"),
        DONE,
    ),
    build(
        "content with the reason",
        Answer("ab"),
        choice(delta={"content": "ab"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "call after the reason",
        Answer("ab", calls=ADD),
        delta(content="ab"),
        STOP,
        calls(call('{"a":1}', "add", id="c")),
        DONE,
    ),
    build("reason twice", Answer("ab"), delta(content="ab"), STOP, STOP, DONE),
    build(
        "reason in every chunk",
        Answer("ab"),
        choice(delta={"content": "a"}, finish_reason="stop"),
        choice(delta={"content": "b"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "empty reason", Answer("ab"), choice(delta={"content": "ab"}, finish_reason=""), STOP, DONE
    ),
    build("unknown reason", Failure("grown_tired"), delta(content="ab"), end("grown_tired"), DONE),
    build("length", Answer("ab", reason="length"), delta(content="ab"), end("length"), DONE),
    build(
        "length after stop",
        Answer("ab", reason="length"),
        delta(content="ab"),
        STOP,
        end("length"),
        DONE,
    ),
    build(
        "content filter",
        Answer("ab", reason="content_filter"),
        delta(content="ab"),
        end("content_filter"),
        DONE,
    ),
    build(
        "one text part", Answer("Hi"), delta(content=[{"type": "text", "text": "Hi"}]), STOP, DONE
    ),
    build(
        "text parts",
        Answer("Hi!"),
        delta(content=[{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]),
        STOP,
        DONE,
    ),
    build("part that is a string", Answer("Hi"), delta(content=["H", "i"]), STOP, DONE),
    build(
        "part outside of a list",
        Answer("Hi"),
        delta(content={"type": "text", "text": "Hi"}),
        STOP,
        DONE,
    ),
    build("part without a type", Answer("Hi"), delta(content=[{"text": "Hi"}, None]), STOP, DONE),
    build("empty list of parts", Answer("Hi"), delta(content=[]), delta(content="Hi"), STOP, DONE),
    build(
        "Mistral's thinking",
        Answer("Hi", "hm"),
        delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
        delta(content=[{"type": "text", "text": "Hi"}]),
        STOP,
        DONE,
    ),
    build(
        "thinking that is a string",
        Answer("Hi", "hm"),
        delta(
            content=[
                {"type": "thinking", "thinking": "hm", "closed": True},
                {"type": "text", "text": "Hi"},
            ]
        ),
        STOP,
        DONE,
    ),
    build(
        "reference part",
        Answer("Hi"),
        delta(
            content=[{"type": "text", "text": "Hi"}, {"type": "reference", "reference_ids": [1]}]
        ),
        STOP,
        DONE,
    ),
    build(
        "refusal part",
        Answer("", refusal="No."),
        delta(content=[{"type": "refusal", "refusal": "No."}]),
        STOP,
        DONE,
    ),
    build(
        "image part",
        Failure("image_url"),
        delta(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        STOP,
        DONE,
    ),
    build(
        "content that is a number", Failure("neither text nor parts"), delta(content=5), STOP, DONE
    ),
    build(
        "images",
        Failure("images"),
        delta(content="", images=[{"type": "image_url", "image_url": {"url": "x"}}]),
        STOP,
        DONE,
    ),
    build(
        "refusal", Answer("", refusal="No."), delta(refusal="N"), delta(refusal="o."), STOP, DONE
    ),
    build(
        "null fields",
        Answer("ab"),
        delta(
            role=None,
            content="ab",
            refusal=None,
            tool_calls=None,
            function_call=None,
            reasoning=None,
            audio=None,
        ),
        STOP,
        DONE,
    ),
    build(
        "null choice and index",
        Answer("ab"),
        {"choices": [None, {"index": None, "delta": {"content": "ab"}}]},
        STOP,
        DONE,
    ),
    build(
        "null delta",
        Answer("ab"),
        choice(delta=None),
        delta(content="ab"),
        choice(delta=None, finish_reason="stop"),
        DONE,
    ),
    build(
        "no index",
        Answer("ab"),
        {"choices": [{"delta": {"content": "ab"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        DONE,
    ),
    build(
        "index that is a string",
        Answer("ab"),
        {"choices": [{"index": "0", "delta": {"content": "ab"}}]},
        STOP,
        DONE,
    ),
    build(
        "choice that was not asked for",
        Failure("choice 1"),
        {"choices": [{"index": 1, "delta": {"content": "ab"}}]},
        STOP,
        DONE,
    ),
    build(
        "null and empty choices",
        Answer("ab"),
        {"choices": []},
        {"choices": None},
        delta(content="ab"),
        STOP,
        DONE,
    ),
    build(
        "unknown chunks",
        Answer("ab"),
        {"object": "chat.completion.new", "x": 1},
        {},
        delta(content="ab"),
        STOP,
        DONE,
    ),
    build(
        "lone surrogate",
        Answer("a\ufffdb"),
        r'{"choices":[{"index":0,"delta":{"content":"a\ud83db"}}]}',
        STOP,
        DONE,
    ),
    build(
        "split surrogate pair",
        Answer("a😀b"),
        r'{"choices":[{"index":0,"delta":{"content":"a\ud83d"}}]}',
        r'{"choices":[{"index":0,"delta":{"content":"\ude00b"}}]}',
        STOP,
        DONE,
    ),
    build(
        "half a pair at the end",
        Answer("a\ufffd"),
        r'{"choices":[{"index":0,"delta":{"content":"a\ud83d"}}]}',
        STOP,
        DONE,
    ),
    build(
        "lone surrogate in a part",
        Answer("\ufffd"),
        r'{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"\ude00"}]}}]}',
        STOP,
        DONE,
    ),
    build(
        "bytes that are not UTF-8",
        Answer("a\ufffd"),
        b'{"choices":[{"index":0,"delta":{"content":"a\xff"}}]}',
        STOP,
        DONE,
    ),
    build(
        "NaN in a field",
        Answer("ab"),
        '{"choices":[{"index":0,"delta":{"content":"ab"}}],"score":NaN}',
        STOP,
        DONE,
    ),
    build(
        "text that is not JSON", Failure("invalid chunk"), delta(content="ab"), "oops", STOP, DONE
    ),
    build("array for a chunk", Failure("invalid chunk"), "[1]", STOP, DONE),
)
REASONING = (
    build(
        "LiteLLM's thinking_blocks",
        Answer("a", "hm"),
        delta(thinking_blocks=[{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build("reasoning", Answer("a", "hm"), delta(reasoning="hm"), delta(content="a"), STOP, DONE),
    build(
        "reasoning_content",
        Answer("a", "hm"),
        delta(reasoning_content="hm"),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "reasoning in both fields",
        Answer("a", "hm"),
        delta(reasoning="hm", reasoning_content="hm"),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "reasoning_text",
        Answer("a", "hm"),
        delta(reasoning_text="hm"),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build("thinking", Answer("a", "hm"), delta(thinking="hm"), delta(content="a"), STOP, DONE),
    build(
        "reasoning that is a list",
        Answer("a", "hm"),
        delta(reasoning=[{"type": "text", "text": "hm"}]),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "reasoning that is an object",
        Answer("a", "hm"),
        delta(reasoning_content={"text": "hm"}),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "reasoning and content in one chunk",
        Answer("a", "hm"),
        delta(reasoning="hm", content="a"),
        STOP,
        DONE,
    ),
    build(
        "reasoning after content",
        Answer("ab", "hm"),
        delta(content="a"),
        delta(reasoning="hm"),
        delta(content="b"),
        STOP,
        DONE,
    ),
    build(
        "details with text",
        Answer("a", "hm"),
        delta(reasoning_details=[{"type": "reasoning.text", "text": "h", "index": 0}]),
        delta(
            reasoning_details=[
                {"type": "reasoning.text", "text": "m", "signature": "c2ln", "index": 0}
            ]
        ),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "details that repeat",
        Answer("a", "hm"),
        delta(reasoning="hm", reasoning_details=[{"type": "reasoning.text", "text": "hm"}]),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "details with a summary",
        Answer("a", "hm"),
        delta(
            reasoning_details=[
                {"type": "reasoning.summary", "summary": "hm", "format": "openai-responses-v1"}
            ]
        ),
        delta(content="a"),
        STOP,
        DONE,
    ),
    build(
        "details that are encrypted",
        Answer("a"),
        delta(
            reasoning_details=[
                {
                    "type": "reasoning.encrypted",
                    "data": "Z0FB",
                    "format": "openai-responses-v1",
                    "id": "rs_1",
                    "index": 0,
                }
            ]
        ),
        delta(content="a"),
        STOP,
        DONE,
    ),
)
CALLS = (
    build(
        "call without arguments",
        Answer(calls=(("add", "{}"),)),
        calls(call("", "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "arguments as parameters",
        Answer(calls=ADD),
        delta(
            tool_calls=[
                {"index": 0, "id": "c", "function": {"name": "add", "parameters": {"a": 1}}}
            ]
        ),
        CALL_END,
        DONE,
    ),
    build(
        "call without a function",
        Answer(calls=ADD),
        delta(tool_calls=[{"index": 0, "id": "c", "name": "add", "arguments": '{"a":1}'}]),
        CALL_END,
        DONE,
    ),
    build(
        "other ids with index 0, no arguments yet",
        Answer(calls=(("add", "{}"), ("get_weather", "{}"))),
        calls(call("", "add", id="c")),
        calls(call("", "get_weather", id="d")),
        CALL_END,
        DONE,
    ),
    build(
        "custom call",
        Failure("without a name"),
        delta(tool_calls=[{"index": 0, "id": "c", "custom": {"input": "ab"}}]),
        CALL_END,
        DONE,
    ),
    build(
        "call",
        Answer(calls=ADD),
        calls(call("", "add", id="c")),
        calls(call('{"a"')),
        calls(call(":1}")),
        CALL_END,
        DONE,
    ),
    build(
        "call that ends with stop",
        Answer(calls=ADD),
        calls(call('{"a":1}', "add", id="c")),
        STOP,
        DONE,
    ),
    build(
        "arguments that are an object",
        Answer(calls=ADD),
        calls(call({"a": 1}, "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "arguments that are an object, repeated",
        Answer(calls=ADD),
        calls(call({"a": 1}, "add", id="c")),
        calls(call({"a": 1}, "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "empty object",
        Answer(calls=(("add", "{}"),)),
        calls(call({}, "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "null arguments first",
        Answer(calls=ADD),
        delta(tool_calls=[{"index": 0, "id": "c", "function": {"name": "add", "arguments": None}}]),
        calls(call('{"a":1}')),
        CALL_END,
        DONE,
    ),
    build(
        "arguments that are a list",
        Failure("not an object"),
        calls(call([1], "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "name in two deltas",
        Answer(calls=(("get_weather", "{}"),)),
        calls(call(name="get_", id="c")),
        calls(call(name="weather")),
        calls(call("{}")),
        CALL_END,
        DONE,
    ),
    build(
        "name in three deltas with null",
        Answer(calls=(("get_weather", "{}"),)),
        calls(call("", "get", id="c")),
        calls(call("", "_wea")),
        calls(call("", "ther")),
        calls(call("{}")),
        CALL_END,
        DONE,
    ),
    build(
        "name repeated whole",
        Answer(calls=ADD),
        calls(call("", "add", id="c")),
        calls(call('{"a":', "add", id="c")),
        calls(call("1}", "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "name that grows",
        Answer(calls=(("get_weather", "{}"),)),
        calls(call("", "get_", id="c")),
        calls(call("", "get_weather")),
        calls(call("{}")),
        CALL_END,
        DONE,
    ),
    build(
        "name that changes",
        Failure("changed the name"),
        calls(call('{"a":', "add", id="c")),
        calls(call("1}", "sub")),
        CALL_END,
        DONE,
    ),
    build(
        "name after the arguments",
        Answer(calls=ADD),
        calls(call('{"a":1}', id="c")),
        calls(call("", "add")),
        CALL_END,
        DONE,
    ),
    build("no name", Failure("without a name"), calls(call('{"a":1}', id="c")), CALL_END, DONE),
    build("no id", Answer(calls=ADD), calls(call('{"a":1}', "add")), CALL_END, DONE),
    build(
        "id that is a number",
        Answer(calls=ADD),
        calls(call('{"a":1}', "add", id=7)),
        CALL_END,
        DONE,
    ),
    build(
        "id in the second delta",
        Answer(calls=ADD),
        calls(call("", "add")),
        calls(call('{"a":1}', id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "another id in every delta",
        Answer(calls=ADD),
        calls(call("", "add", id="c1")),
        calls(call('{"a"', id="c2")),
        calls(call(":1}", id="c3")),
        CALL_END,
        DONE,
    ),
    build(
        "two calls",
        Answer(calls=(*ADD, ("get_weather", "{}"))),
        calls(call('{"a":1}', "add", id="c")),
        calls(call("{}", "get_weather", id="d", index=1)),
        CALL_END,
        DONE,
    ),
    build(
        "two calls with index 0",
        Answer(calls=(*ADD, ("get_weather", "{}"))),
        calls(call('{"a":1}', "add", id="c")),
        calls(call("{}", "get_weather", id="d")),
        CALL_END,
        DONE,
    ),
    build(
        "two calls with index 0 and no arguments yet",
        Answer(calls=(("add", "{}"), ("get_weather", "{}"))),
        calls(call("", "add", id="c")),
        calls(call("{}", id="c")),
        calls(call("", "get_weather", id="d")),
        calls(call("{}", id="d")),
        CALL_END,
        DONE,
    ),
    build(
        "whole call without an index twice",
        Answer(calls=ADD),
        calls(call('{"a":1}', "add", id="c", index=None)),
        calls(call('{"a":1}', "add", id="c", index=None)),
        CALL_END,
        DONE,
    ),
    build(
        "pieces without an index that repeat the id",
        Answer(calls=ADD),
        calls(call('{"a"', "add", id="c", index=None)),
        calls(call(":1", "add", id="c", index=None)),
        calls(call("}", id="c", index=None)),
        CALL_END,
        DONE,
    ),
    build(
        "other calls without an index and with the same id",
        Answer(calls=(*ADD, ("add", '{"a": 2}'), ("get_weather", "{}"))),
        calls(call('{"a":1}', "add", id="c", index=None)),
        calls(call('{"a":2}', "add", id="c", index=None)),
        calls(call("{}", "get_weather", id="c", index=None)),
        CALL_END,
        DONE,
    ),
    build(
        "calls without index, id and the first's arguments",
        Answer(calls=(("get_weather", "{}"), *ADD)),
        calls(call("", "get_weather", index=None), call('{"a":1}', "add", index=None)),
        CALL_END,
        DONE,
    ),
    build(
        "calls without index and id, each begun by its name",
        Answer(calls=(*ADD, ("get_weather", "{}"))),
        calls(call('{"a":1}', "add", index=None)),
        calls(call("", "get_weather", index=None)),
        calls(call("{}", index=None)),
        CALL_END,
        DONE,
    ),
    build(
        "pieces without index and id",
        Answer(calls=ADD),
        calls(call("", "add", index=None)),
        calls(call('{"a"', "add", index=None)),
        calls(call(":1}", index=None)),
        CALL_END,
        DONE,
    ),
    build(
        "two calls without an index",
        Answer(calls=(*ADD, ("get_weather", "{}"))),
        calls(
            call('{"a":1}', "add", id="c", index=None),
            call("{}", "get_weather", id="d", index=None),
        ),
        CALL_END,
        DONE,
    ),
    build(
        "interleaved calls",
        Answer(calls=(*ADD, ("get_weather", '{"b": 2}'))),
        calls(call('{"a"', "add", id="c")),
        calls(call('{"b"', "get_weather", id="d", index=1)),
        calls(call(":1}")),
        calls(call(":2}", index=1)),
        CALL_END,
        DONE,
    ),
    build(
        "text within a call",
        Answer("ab", calls=ADD),
        delta(content="a"),
        calls(call('{"a"', "add", id="c")),
        delta(content="b"),
        calls(call(":1}")),
        CALL_END,
        DONE,
    ),
    build(
        "reasoning within a call",
        Answer("", "hm", calls=ADD),
        calls(call('{"a"', "add", id="c")),
        delta(reasoning="hm"),
        calls(call(":1}")),
        CALL_END,
        DONE,
    ),
    build(
        "call outside of a list",
        Answer(calls=ADD),
        delta(tool_calls=call('{"a":1}', "add", id="c")),
        CALL_END,
        DONE,
    ),
    build(
        "null call",
        Answer(calls=ADD),
        delta(tool_calls=[None, call('{"a":1}', "add", id="c")]),
        CALL_END,
        DONE,
    ),
    build(
        "surrogates in arguments",
        Answer(calls=(("add", '{"a": "\\ud83d\\ude00"}'),)),
        calls(call('{"a":"', "add", id="c")),
        r'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\ud83d"}}]}}]}',
        r'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\ude00\"}"}}]}}]}',
        CALL_END,
        DONE,
    ),
    build(
        "legacy call",
        Answer(calls=ADD),
        delta(function_call={"name": "add", "arguments": ""}),
        delta(function_call={"arguments": '{"a":'}),
        delta(function_call={"arguments": "1}"}),
        end("function_call"),
        DONE,
    ),
    build(
        "legacy call with an object",
        Answer(calls=ADD),
        delta(function_call={"name": "add", "arguments": {"a": 1}}),
        end("function_call"),
        DONE,
    ),
    build(
        "call in both forms",
        Answer(calls=ADD),
        delta(
            function_call={"name": "add", "arguments": '{"a":1}'},
            tool_calls=[call('{"a":1}', "add", id="c")],
        ),
        CALL_END,
        DONE,
    ),
    build(
        "reason of a call without one",
        Failure("sent no call"),
        delta(content=""),
        end("function_call"),
        DONE,
    ),
    build("reason of calls without one", Failure("sent no call"), CALL_END, DONE),
)
WHOLE = (
    build(
        "whole message at the end",
        Answer("all of it"),
        choice(message={"role": "assistant", "content": "all of it"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "whole message after deltas",
        Answer("all of it"),
        delta(content="all "),
        choice(message={"content": "all of it"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "whole message that repeats",
        Answer("all"),
        delta(content="all"),
        choice(message={"content": "all"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "whole message that contradicts",
        CONTRADICTION,
        delta(content="all"),
        choice(message={"content": "none"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "text so far in each chunk",
        Answer("ab"),
        choice(delta={"content": "a"}, message={"content": "a"}),
        choice(delta={"content": "b"}, message={"content": "ab"}),
        choice(delta={}, message={"content": "ab"}, finish_reason="stop"),
        DONE,
    ),
    build(
        "whole message with a call",
        Answer("a", calls=ADD),
        delta(content="a"),
        choice(
            message={"content": "a", "tool_calls": [call('{"a": 1}', "add", id="c")]},
            finish_reason="tool_calls",
        ),
        DONE,
    ),
    build(
        "whole message that completes a call",
        Answer(calls=ADD),
        calls(call('{"a"', "add", id="c")),
        choice(
            message={"content": None, "tool_calls": [call('{"a":1}', "add", id="c")]},
            finish_reason="tool_calls",
        ),
        DONE,
    ),
    build(
        "whole message with other white space",
        Answer(calls=ADD),
        calls(call('{"a":1}', "add", id="c")),
        choice(
            message={"tool_calls": [call('{"a": 1}', "add", id="c")]}, finish_reason="tool_calls"
        ),
        DONE,
    ),
    build(
        "whole message with another call",
        CONTRADICTION,
        calls(call('{"a":1}', "add", id="c")),
        choice(
            message={"tool_calls": [call('{"a":2}', "add", id="c")]}, finish_reason="tool_calls"
        ),
        DONE,
    ),
    build(
        "whole message after the reason",
        Answer("abc"),
        delta(content="ab"),
        STOP,
        choice(message={"content": "abc"}),
        DONE,
    ),
    Case(
        "compatible",
        "response that is not streamed",
        json.dumps(
            choice(
                message={
                    "content": [{"type": "text", "text": "Hi"}],
                    "tool_calls": [call({"a": 1}, "add", id="c")],
                },
                finish_reason="tool_calls",
            )
        ).encode(),
        Answer("Hi", calls=ADD),
        "application/json",
    ),
    Case(
        "compatible",
        "response with a legacy call",
        json.dumps(
            choice(
                message={"content": None, "function_call": {"name": "add", "arguments": '{"a":1}'}},
                finish_reason="function_call",
            )
        ).encode(),
        Answer(calls=ADD),
        "application/json",
    ),
    Case(
        "compatible",
        "error that is not streamed",
        json.dumps({"error": {"message": "boom", "code": 529}}).encode(),
        Failure("overloaded", "overloaded"),
        "application/json",
    ),
)
FRAMING = (
    build(
        "usage of another type",
        Answer("ab"),
        {**delta(content="ab"), "usage": []},
        {**STOP, "usage": {"prompt_tokens": "many"}},
        DONE,
    ),
    build(
        "logprobs of another type",
        Answer("ab"),
        choice(delta={"content": "ab"}, logprobs=[]),
        STOP,
        DONE,
    ),
    build(
        "error as bare JSON",
        OVERLOADED,
        delta(content="ab"),
        {"error": {"message": "boom", "code": 529}},
        field="",
        prefix="data: ",
    ),
    build("reason in capitals", Answer("ab"), delta(content="ab"), end("STOP"), DONE),
    Case(
        "compatible",
        "named error in a stream that is called JSON",
        sse(delta(content="ab"), STOP, '{"message": "boom"}', names=["", "", "error"]),
        FAILED,
        "application/json",
    ),
    Case(
        "compatible",
        "stream that is called JSON",
        sse(delta(content="ab"), STOP, DONE),
        Answer("ab"),
        "application/json",
    ),
    Case(
        "compatible",
        "JSON that is called a stream",
        json.dumps(choice(message={"content": "ab"}, finish_reason="stop"), indent=2).encode(),
        Answer("ab"),
    ),
    build(
        "comments, retry and ids",
        Answer("ab"),
        delta(content="ab"),
        STOP,
        DONE,
        prefix=": ping\n\nretry: 10\n\nid: 1\n",
    ),
    build("empty data", Answer("ab"), "", delta(content="ab"), "", STOP, DONE),
    build("CRLF", Answer("ab"), delta(content="ab"), STOP, DONE, line_end="\r\n"),
    build("CR", Answer("ab"), delta(content="ab"), STOP, DONE, line_end="\r"),
    build("no space after the colon", Answer("ab"), delta(content="ab"), STOP, DONE, field="data:"),
    build("byte order mark", Answer("ab"), delta(content="ab"), STOP, DONE, prefix="\ufeff"),
    build("no blank line at the end", Answer("ab"), delta(content="ab"), STOP, ends=False),
    build("event names", Answer("ab"), delta(content="ab"), STOP, DONE, names=["chunk", "x", ""]),
    build(
        "usage first",
        Answer("ab"),
        {"choices": [], "usage": {"prompt_tokens": 3}},
        delta(content="ab"),
        STOP,
        DONE,
    ),
    build(
        "usage in every chunk",
        Answer("ab"),
        {**delta(content="ab"), "usage": {"prompt_tokens": "3", "completion_tokens": None}},
        {**STOP, "usage": {"prompt_tokens": 3}},
        DONE,
    ),
    build(
        "usage in the choice",
        Answer("ab"),
        delta(content="ab"),
        end("stop", usage={"prompt_tokens": 3, "completion_tokens": 2}),
        DONE,
    ),
    build(
        "usage after the reason",
        Answer("ab"),
        delta(content="ab"),
        STOP,
        {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": None}},
        DONE,
    ),
)
ERRORS = (
    build("error list", FAILED, delta(content="ab"), {"errors": [{"message": "boom"}]}),
    build(
        "empty error",
        Answer("ab"),
        {**delta(content="ab"), "error": {}},
        {**STOP, "error": ""},
        DONE,
    ),
    build(
        "error envelope",
        FAILED,
        delta(content="ab"),
        {"error": {"message": "boom", "type": "server_error", "code": None}},
    ),
    build("error text", FAILED, delta(content="ab"), {"error": "boom"}),
    build("error before any content", FAILED, {"error": {"message": "boom"}}),
    build(
        "error without an envelope",
        FAILED,
        delta(content="ab"),
        {"object": "error", "message": "boom", "type": "InternalServerError", "code": 500},
    ),
    build("error as detail", FAILED, delta(content="ab"), {"detail": "boom"}),
    build(
        "error in Anthropic's form",
        OVERLOADED,
        delta(content="ab"),
        {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}},
    ),
    build(
        "error in Google's form",
        OVERLOADED,
        delta(content="ab"),
        {"error": {"code": 503, "message": "boom", "status": "UNAVAILABLE"}},
    ),
    build(
        "error as a named event",
        FAILED,
        delta(content="ab"),
        {"message": "boom"},
        names=["", "error"],
    ),
    build("error text as a named event", FAILED, delta(content="ab"), "boom", names=["", "error"]),
    build(
        "error in the choice",
        OVERLOADED,
        delta(content="ab"),
        choice(
            delta={"content": ""}, finish_reason="error", error={"code": 503, "message": "boom"}
        ),
    ),
    build(
        "error of code 529",
        OVERLOADED,
        delta(content="ab"),
        {"error": {"message": "boom", "code": 529}},
    ),
    build(
        "error of code 529 as text",
        OVERLOADED,
        delta(content="ab"),
        {"error": {"message": "boom", "code": "529"}},
    ),
    build(
        "error of status 529",
        OVERLOADED,
        delta(content="ab"),
        {"error": {"message": "boom", "status_code": 529, "type": "x"}},
    ),
    build(
        "error of 529 with another code",
        OVERLOADED,
        delta(content="ab"),
        {"error": {"message": "boom", "code": 529, "type": "engine_error"}},
    ),
    build(
        "null error",
        Answer("ab"),
        {**delta(content="ab"), "error": None},
        {**STOP, "error": None},
        DONE,
    ),
    build(
        "cut within an event",
        Failure("invalid chunk"),
        delta(content="ab"),
        '{"choices":[{"ind',
        ends=False,
    ),
)
CASES = (*TEXTS, *REASONING, *CALLS, *WHOLE, *FRAMING, *ERRORS)
