"""Odd answers of servers with Google's Gemini API, and what each of them means."""

from __future__ import annotations

import json
from typing import Any

from tests.engines.upstream.client_answers import Answer, Failure
from tests.engines.upstream.odd_stream import ADD, CUT_OFF, FAILED, OVERLOADED, Case, sse


def chunk(
    *parts: dict[str, Any] | None, reason: str | None = None, **fields: Any
) -> dict[str, Any]:
    end = {} if reason is None else {"finishReason": reason}
    return {"candidates": [{"content": {"role": "model", "parts": parts}, **end}], **fields}


def text(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, **fields}


def call(args: Any = None, **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"name": "add", **({} if args is None else {"args": args})}, **fields}


def build(name: str, expected: Answer | Failure, *events: Any, **options: Any) -> Case:
    return Case("gemini", name, sse(*events, **options), expected)


def whole(name: str, expected: Answer | Failure, body: Any) -> Case:
    return Case("gemini", name, json.dumps(body).encode(), expected, "application/json")


def error(code: int, status: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "No.", "status": status, **fields}}


STOP = chunk(reason="STOP")
USAGE = {"promptTokenCount": "3", "candidatesTokenCount": "2"}
BARE_CALL = (("add", "{}"),)
CASES = (
    build("text in pieces", Answer("ab"), chunk(text("a")), chunk(text("b")), STOP),
    build(
        "reason in every chunk",
        Answer("ab"),
        chunk(text("a"), reason="STOP"),
        chunk(text("b"), reason="STOP"),
    ),
    build(
        "last of two reasons",
        Answer("ab", reason="length"),
        chunk(text("a"), reason="STOP"),
        chunk(text("b"), reason="MAX_TOKENS"),
    ),
    build(
        "unspecified reason before the end",
        Answer("a"),
        chunk(text("a"), reason="FINISH_REASON_UNSPECIFIED"),
        STOP,
    ),
    build(
        "content after the reason", Answer("ab"), chunk(text("a"), reason="STOP"), chunk(text("b"))
    ),
    build(
        "thought and text",
        Answer("b", "a"),
        chunk(text("a", thought=True)),
        chunk(text("b"), reason="STOP"),
    ),
    build(
        "thoughts around a text",
        Answer("b", "ac"),
        chunk(text("a", thought=True), text("b")),
        chunk(text("c", thought=True), reason="STOP"),
    ),
    build(
        "signature on a call",
        Answer(calls=ADD),
        chunk(call({"a": 1}, thoughtSignature="c2ln"), reason="STOP"),
    ),
    build(
        "signature on an empty text",
        Answer("a"),
        chunk(text("a")),
        chunk(text("", thoughtSignature="c2ln"), reason="STOP"),
    ),
    build(
        "signature on a part without content",
        Answer("a"),
        chunk(text("a")),
        chunk({"thoughtSignature": "c2ln"}, reason="STOP"),
    ),
    build(
        "signature in the middle of a text",
        Answer("ab"),
        chunk(text("a")),
        chunk(text("b", thoughtSignature="c2ln"), reason="STOP"),
    ),
    build(
        "call with an id",
        Answer(calls=ADD),
        chunk({"functionCall": {"id": "x", "name": "add", "args": {"a": 1}}}, reason="STOP"),
    ),
    build(
        "call with a number as id",
        Answer(calls=ADD),
        chunk({"functionCall": {"id": 7, "name": "add", "args": {"a": 1}}}, reason="STOP"),
    ),
    build("call without arguments", Answer(calls=BARE_CALL), chunk(call(), reason="STOP")),
    build("arguments as text", Answer(calls=ADD), chunk(call('{"a": 1}'), reason="STOP")),
    build(
        "parallel calls in one chunk",
        Answer(calls=ADD * 2),
        chunk(call({"a": 1}), call({"a": 1}), reason="STOP"),
    ),
    build(
        "text, call, text",
        Answer("ab", calls=ADD),
        chunk(text("a")),
        chunk(call({"a": 1})),
        chunk(text("b"), reason="STOP"),
    ),
    build(
        "call without a name",
        Failure("without a name"),
        chunk({"functionCall": {"args": {}}}, reason="STOP"),
    ),
    build("arguments that are a list", Failure("not an object"), chunk(call([1]), reason="STOP")),
    build("no reason", CUT_OFF, chunk(text("a"))),
    build("nothing at all", CUT_OFF),
    build("no content", Answer(), {"candidates": [{"finishReason": "STOP"}]}),
    build("null parts", Answer("a"), chunk(None, text("a"), reason="STOP")),
    build(
        "chunks without candidates",
        Answer("a"),
        {"usageMetadata": USAGE},
        chunk(text("a"), reason="STOP"),
        {"usageMetadata": USAGE},
    ),
    build(
        "usage of another type", Answer("a"), chunk(text("a"), reason="STOP", usageMetadata="none")
    ),
    build("safety", Answer("a", reason="content_filter"), chunk(text("a"), reason="SAFETY")),
    build(
        "recitation", Answer("a", reason="content_filter"), chunk(text("a"), reason="RECITATION")
    ),
    build(
        "blocked prompt",
        Answer(reason="content_filter"),
        {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE},
    ),
    build(
        "malformed call",
        Failure("MALFORMED_FUNCTION_CALL"),
        chunk(reason="MALFORMED_FUNCTION_CALL"),
    ),
    build("unknown reason", Failure("NEW_REASON"), chunk(text("a"), reason="NEW_REASON")),
    build(
        "second candidate",
        Failure("several candidates"),
        {"candidates": [{"index": 1, "content": {"parts": [text("a")]}}]},
    ),
    build(
        "media",
        Failure("media"),
        chunk({"inlineData": {"mimeType": "image/png", "data": ""}}, reason="STOP"),
    ),
    build(
        "code that Google ran",
        Answer("a"),
        chunk(
            {"executableCode": {"code": "1"}},
            {"codeExecutionResult": {"output": "1"}},
            text("a"),
            reason="STOP",
        ),
    ),
    build("error in the stream", FAILED, chunk(text("a")), error(500, "INTERNAL")),
    build("overload in the stream", OVERLOADED, chunk(text("a")), error(503, "UNAVAILABLE")),
    build("error before any chunk", Failure("No."), error(400, "INVALID_ARGUMENT")),
    build(
        "error without a code",
        Failure("No."),
        {"error": {"message": "No.", "status": "INVALID_ARGUMENT"}},
    ),
    build("end of OpenAI's streams", Answer("a"), chunk(text("a"), reason="STOP"), "[DONE]"),
    build(
        "lines that end with CR LF", Answer("a"), chunk(text("a"), reason="STOP"), line_end="\r\n"
    ),
    build("no blank line at the end", Answer("a"), chunk(text("a"), reason="STOP"), ends=False),
    build(
        "half of a surrogate pair",
        Answer("\ufffd"),
        b'{"candidates":[{"content":{"parts":[{"text":"\\ud83d"}]},"finishReason":"STOP"}]}',
    ),
    build(
        "surrogate pair in two chunks",
        Answer("\U0001f600"),
        b'{"candidates":[{"content":{"parts":[{"text":"\\ud83d"}]}}]}',
        b'{"candidates":[{"content":{"parts":[{"text":"\\ude00"}]},"finishReason":"STOP"}]}',
    ),
    build("no JSON", Failure("invalid event"), "{"),
    whole(
        "one object",
        Answer("b", "a", calls=ADD),
        chunk(text("a", thought=True), text("b"), call({"a": 1}), reason="STOP"),
    ),
    whole("an array of chunks", Answer("ab"), [chunk(text("a")), chunk(text("b"), reason="STOP")]),
    whole("an array with an error", OVERLOADED, [chunk(text("a")), error(503, "UNAVAILABLE")]),
    whole("an empty array", CUT_OFF, []),
)
