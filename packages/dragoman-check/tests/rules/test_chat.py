"""The checker of the Chat Completions grammar detects each broken rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman_check.rules.chat import check_object, check_stream
from dragoman_check.rules.json_values import Violation

from .streams import (
    CALL_ARGUMENTS,
    CALL_START,
    DONE,
    ERROR,
    HELLO,
    ROLE,
    STOP,
    TOKEN_COUNTS,
    TOOL_CALLS_FINISH,
    USAGE,
    JsonObject,
    build_call_delta,
    build_chat_chunk,
    encode_sse,
)

VALID_STREAMS = [
    [ROLE, HELLO, STOP, DONE],
    [ROLE, STOP, DONE],
    [ROLE, build_chat_chunk({"reasoning": "a", "reasoning_content": "a"}), HELLO, STOP, DONE],
    [ROLE, build_chat_chunk({"refusal": "no"}), STOP, DONE],
    [ROLE, build_chat_chunk(CALL_START), build_chat_chunk(CALL_ARGUMENTS), TOOL_CALLS_FINISH, DONE],
    [
        ROLE,
        build_chat_chunk(
            build_call_delta(0, id="c", type="custom", custom={"name": "f", "input": ""})
        ),
        TOOL_CALLS_FINISH,
        DONE,
    ],
    [
        ROLE,
        build_chat_chunk({"function_call": {"name": "f", "arguments": ""}}),
        build_chat_chunk({}, reason="function_call"),
        DONE,
    ],
    [
        ROLE,
        build_chat_chunk({"role": "assistant"}, index=1),
        STOP,
        build_chat_chunk({}, reason="length", index=1),
        DONE,
    ],
    [ROLE, HELLO, ERROR],
]
EMPTY: JsonObject = {}
CACHED: JsonObject = {"prompt_tokens_details": {"cached_tokens": 2}}
TOP_LOGPROBS = [{"token": "a", "logprob": -1, "bytes": None}]


def build_scored_chunk(**entry: Any) -> Any:
    chunk = json.loads(json.dumps(HELLO))
    chunk["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}
    return chunk


@pytest.mark.parametrize("payloads", VALID_STREAMS)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(b": hi\n\n" + encode_sse(*payloads), include_usage=False)


def test_check_stream_accepts_requested_usage():
    check_stream(encode_sse(ROLE, HELLO, STOP, USAGE, DONE), include_usage=True)


VARIANTS = [
    [ROLE, build_chat_chunk({"content": "x"}, reason="stop"), DONE],
    [ROLE, HELLO, build_chat_chunk({"content": ""}, reason="stop"), DONE],
    [
        ROLE,
        build_chat_chunk({**CALL_START, "content": None}),
        build_chat_chunk(CALL_ARGUMENTS),
        TOOL_CALLS_FINISH,
        DONE,
    ],
    [ROLE, HELLO, STOP | {"system_fingerprint": "f"}, DONE],
    [build_chat_chunk({"role": "assistant", "content": "x"}), HELLO, STOP, DONE],
    [
        build_chat_chunk({"role": "assistant", "content": None, **CALL_START}),
        build_chat_chunk(CALL_ARGUMENTS),
        TOOL_CALLS_FINISH,
        DONE,
    ],
    [
        build_chat_chunk({"role": "assistant", "content": "", **CALL_START}),
        build_chat_chunk(CALL_ARGUMENTS),
        TOOL_CALLS_FINISH,
        DONE,
    ],
    [ROLE, build_chat_chunk({"reasoning_content": "x", "content": "y"}), STOP, DONE],
]


@pytest.mark.parametrize("payloads", VARIANTS)
def test_check_stream_with_variants_accepts_unspecified_forms(payloads: list[object]):
    with pytest.raises(Violation):
        check_stream(encode_sse(*payloads), include_usage=False)
    check_stream(encode_sse(*payloads), include_usage=False, allow_variants=True)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([ROLE, build_chat_chunk({"content": ""}), STOP, DONE], "empty field"),
        ([ROLE, build_chat_chunk({}), STOP, DONE], "expected one"),
        ([ROLE, build_chat_chunk({"vendor": "x"}, reason="stop"), DONE], "unknown fields"),
        ([build_chat_chunk({"role": "assistant", "vendor": "x"}), STOP, DONE], "unknown fields"),
        (
            [build_chat_chunk({"role": "assistant", **CALL_ARGUMENTS}), TOOL_CALLS_FINISH, DONE],
            "without id",
        ),
        ([ROLE, build_chat_chunk({"role": "assistant"}, reason="stop"), DONE], "a second role"),
        (
            [ROLE, HELLO | {"system_fingerprint": "f"}, STOP | {"system_fingerprint": "g"}, DONE],
            "fingerprint changed",
        ),
        ([ROLE, HELLO | {"id": "d"}, STOP, DONE], "id changed"),
    ],
)
def test_check_stream_with_variants_rejects_rule_violations(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_sse(*payloads), include_usage=False, allow_variants=True)


def test_check_stream_accepts_valid_logprobs():
    good = build_scored_chunk(token="a", logprob=-1, bytes=[97], top_logprobs=TOP_LOGPROBS)
    check_stream(encode_sse(ROLE, good, STOP, DONE), include_usage=False)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([], r"has no \[DONE\]"),
        ([ROLE, HELLO, STOP], r"has no \[DONE\]"),
        ([ROLE, HELLO, DONE], "has no finish_reason"),
        ([DONE], "has no finish_reason"),
        ([ROLE, STOP, DONE, STOP], "follows .DONE."),
        ([ROLE, STOP, USAGE, DONE], "without include_usage"),
        ([HELLO, STOP, DONE], "has no role"),
        ([build_chat_chunk({"role": "assistant", "content": "x"}), STOP, DONE], "more than a role"),
        ([ROLE, ROLE, STOP, DONE], "a second role"),
        ([ROLE, STOP, HELLO, DONE], "follows finish_reason"),
        ([ROLE, STOP, STOP, DONE], "follows finish_reason"),
        ([build_chat_chunk({"role": "assistant"}, index=1)], "before choice 0"),
        ([ROLE, build_chat_chunk({"content": ""}), STOP, DONE], "empty field"),
        ([ROLE, build_chat_chunk({"content": None}), STOP, DONE], "empty field"),
        ([ROLE, build_chat_chunk({"content": "a", "refusal": "b"}), STOP, DONE], "expected one"),
        ([ROLE, build_chat_chunk({}), STOP, DONE], "expected one"),
        ([ROLE, build_chat_chunk({"vendor": "a"}), STOP, DONE], "unknown fields"),
        (
            [ROLE, build_chat_chunk({"reasoning": "a", "reasoning_content": "b"}), STOP, DONE],
            "differ",
        ),
        ([ROLE, build_chat_chunk({"content": "x"}, reason="stop"), DONE], "not empty"),
        ([ROLE, build_chat_chunk({}, reason="tool_call"), DONE], "finish_reason is"),
        ([ROLE, build_chat_chunk({}, reason="tool_calls"), DONE], "without a tool call"),
        ([ROLE, HELLO | {"id": "d"}, STOP, DONE], "id changed"),
        ([ROLE, HELLO | {"created": 2}, STOP, DONE], "created changed"),
        ([ROLE, HELLO | {"model": "n"}, STOP, DONE], "model changed"),
        ([ROLE, HELLO | {"system_fingerprint": "n"}, STOP, DONE], "fingerprint changed"),
        ([ROLE | {"object": "chat.completions"}], "object is"),
        (
            [ROLE, {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}],
            "choices is None",
        ),
        ([ROLE, build_chat_chunk(CALL_ARGUMENTS), TOOL_CALLS_FINISH, DONE], "without id"),
        (
            [
                ROLE,
                build_chat_chunk(
                    build_call_delta(1, id="c", type="function", function={"name": "f"})
                ),
                TOOL_CALLS_FINISH,
                DONE,
            ],
            "open call is -1",
        ),
        (
            [
                ROLE,
                build_chat_chunk(
                    build_call_delta(0, id="", type="function", function={"name": "f"})
                ),
                TOOL_CALLS_FINISH,
                DONE,
            ],
            "without id",
        ),
        (
            [
                ROLE,
                build_chat_chunk(
                    build_call_delta(0, id="c", type="function", function={"name": ""})
                ),
                TOOL_CALLS_FINISH,
                DONE,
            ],
            "without id",
        ),
        (
            [
                ROLE,
                build_chat_chunk(CALL_START),
                build_chat_chunk(CALL_START),
                TOOL_CALLS_FINISH,
                DONE,
            ],
            "repeated",
        ),
        (
            [
                ROLE,
                build_chat_chunk(CALL_START),
                build_chat_chunk(build_call_delta(0, function={"name": "f", "arguments": "x"})),
                TOOL_CALLS_FINISH,
                DONE,
            ],
            "repeated",
        ),
        (
            [
                ROLE,
                build_chat_chunk(CALL_START),
                build_chat_chunk(build_call_delta(0, id=None, function={"arguments": "x"})),
                TOOL_CALLS_FINISH,
                DONE,
            ],
            "repeated",
        ),
        (
            [ROLE, build_chat_chunk({"tool_calls": [{"id": "c"}]}), TOOL_CALLS_FINISH, DONE],
            "index of a call",
        ),
        ([ROLE, build_chat_chunk({"function_call": {"arguments": "x"}})], "has 0 names"),
        ([ROLE, ERROR, DONE], "DONE. after an error"),
        ([ROLE, ERROR, STOP, DONE], "chunk follows an error"),
        ([ROLE, {"error": {"message": "m", "type": "t", "code": None}}], "has no param"),
        ([ROLE, {"error": "boom"}], "expected an object"),
        (
            [ROLE, build_scored_chunk(token="a", logprob=-1, bytes=None), STOP, DONE],
            "top_logprobs is None",
        ),
        (
            [
                ROLE,
                build_scored_chunk(token="a", logprob=1, bytes=None, top_logprobs=[]),
                STOP,
                DONE,
            ],
            "not a logprob",
        ),
        (
            [ROLE, build_scored_chunk(logprob=-1, bytes=None, top_logprobs=[]), STOP, DONE],
            "token is None",
        ),
        (
            [ROLE, build_scored_chunk(token="a", logprob=-1, top_logprobs=[]), STOP, DONE],
            "has no bytes",
        ),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_sse(*payloads), include_usage=False)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([ROLE, HELLO, STOP, DONE], "no usage chunk"),
        ([ROLE, USAGE, STOP, DONE], "precedes the end of a choice"),
        ([ROLE, STOP, USAGE, USAGE, DONE], "follows the usage chunk"),
        ([ROLE, STOP, USAGE | {"usage": None}, DONE], "usage is None"),
        ([ROLE, STOP, USAGE | {"usage": TOKEN_COUNTS | {"total_tokens": 4}}, DONE], "expected 3"),
        (
            [
                ROLE,
                STOP,
                USAGE | {"usage": TOKEN_COUNTS | {"prompt_tokens_details": {"cached_tokens": 2}}},
                DONE,
            ],
            "more cached",
        ),
    ],
)
def test_check_stream_rejects_misplaced_usage(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_sse(*payloads), include_usage=True)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b'data: {"a": 1}\n', "inside an event"),
        (b"event: x\ndata: {}\n\n", "not a data event"),
        (b"data: {}\ndata: {}\n\n", "several lines"),
        ('data: {"a":"\u2028"}\n\n'.encode(), "several lines"),
        (b"data: {oops}\n\n", "not JSON"),
        (b"data: [1]\n\n", "expected an object"),
        (b'data: {"a": NaN}\n\n', "NaN is not JSON"),
    ],
)
def test_check_stream_rejects_invalid_sse_framing(data: bytes, rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(data, include_usage=False)


def build_object(content: Any, reason: Any = "stop", **choice: Any) -> Any:
    message = {"role": "assistant", "content": "x", "refusal": None, **content}
    choices = [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, **choice}
    ]
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": TOKEN_COUNTS,
    }


def test_check_object_accepts_valid_object():
    check_object(build_object({}))
    function = {"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    check_object(build_object({"tool_calls": [function]}, "tool_calls"))


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (build_object({}) | {"object": "chat.completions"}, "object is"),
        (build_object({}) | {"id": None}, "id is None"),
        (build_object({}) | {"usage": {}}, "prompt_tokens is None"),
        (build_object({"role": "bot"}), "role is"),
        (build_object({"tool_calls": None}), "tool_calls is None"),
        (build_object({"tool_calls": []}), "tool_calls is empty"),
        (build_object({"tool_calls": [{"id": "c"}]}), "function of a call"),
        (
            build_object(
                {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]}
            ),
            "arguments of a call",
        ),
        (build_object({}, "tool_calls"), "without a tool call"),
        (build_object({}, None), "finish_reason is None"),
        (build_object({}, index=1), "not consecutive"),
        (build_object({}, message={"role": "assistant", "content": None}), "has no refusal"),
        (build_object({}, logprobs={"content": [{}]}), "token is None"),
        (EMPTY, "object is None"),
    ],
)
def test_check_object_rejects_each_rule_violation(answer: Any, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object(answer)
