"""The checker of the Chat Completions grammar detects each broken rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman_check.rules.chat import check_object, check_stream
from dragoman_check.rules.json_values import Violation

from .streams import (
    ARGUMENTS,
    BEGIN_CALL,
    CALLED,
    COUNTS,
    DONE,
    ERROR,
    HELLO,
    ROLE,
    STOP,
    USAGE,
    Json,
    call,
    chat,
    sse,
)

GOOD = [
    [ROLE, HELLO, STOP, DONE],
    [ROLE, STOP, DONE],
    [ROLE, chat({"reasoning": "a", "reasoning_content": "a"}), HELLO, STOP, DONE],
    [ROLE, chat({"refusal": "no"}), STOP, DONE],
    [ROLE, chat(BEGIN_CALL), chat(ARGUMENTS), CALLED, DONE],
    [ROLE, chat(call(0, id="c", type="custom", custom={"name": "f", "input": ""})), CALLED, DONE],
    [
        ROLE,
        chat({"function_call": {"name": "f", "arguments": ""}}),
        chat({}, reason="function_call"),
        DONE,
    ],
    [ROLE, chat({"role": "assistant"}, index=1), STOP, chat({}, reason="length", index=1), DONE],
    [ROLE, HELLO, ERROR],
]
EMPTY: Json = {}
CACHED: Json = {"prompt_tokens_details": {"cached_tokens": 2}}
TOP = [{"token": "a", "logprob": -1, "bytes": None}]


def build_scored_chunk(**entry: Any) -> Any:
    chunk = json.loads(json.dumps(HELLO))
    chunk["choices"][0]["logprobs"] = {"content": [entry], "refusal": None}
    return chunk


@pytest.mark.parametrize("payloads", GOOD)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(b": hi\n\n" + sse(*payloads), include_usage=False)


def test_check_stream_accepts_requested_usage():
    check_stream(sse(ROLE, HELLO, STOP, USAGE, DONE), include_usage=True)


VARIANTS = [
    [ROLE, chat({"content": "x"}, reason="stop"), DONE],
    [ROLE, HELLO, chat({"content": ""}, reason="stop"), DONE],
    [ROLE, chat({**BEGIN_CALL, "content": None}), chat(ARGUMENTS), CALLED, DONE],
    [ROLE, HELLO, STOP | {"system_fingerprint": "f"}, DONE],
    [chat({"role": "assistant", "content": "x"}), HELLO, STOP, DONE],
    [chat({"role": "assistant", "content": None, **BEGIN_CALL}), chat(ARGUMENTS), CALLED, DONE],
    [chat({"role": "assistant", "content": "", **BEGIN_CALL}), chat(ARGUMENTS), CALLED, DONE],
    [ROLE, chat({"reasoning_content": "x", "content": "y"}), STOP, DONE],
]


@pytest.mark.parametrize("payloads", VARIANTS)
def test_check_stream_with_variants_accepts_unspecified_forms(payloads: list[object]):
    with pytest.raises(Violation):
        check_stream(sse(*payloads), include_usage=False)
    check_stream(sse(*payloads), include_usage=False, allow_variants=True)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([ROLE, chat({"content": ""}), STOP, DONE], "empty field"),
        ([ROLE, chat({}), STOP, DONE], "a delta has one field"),
        ([ROLE, chat({"vendor": "x"}, reason="stop"), DONE], "unknown fields"),
        ([chat({"role": "assistant", "vendor": "x"}), STOP, DONE], "unknown fields"),
        ([chat({"role": "assistant", **ARGUMENTS}), CALLED, DONE], "without id"),
        ([ROLE, chat({"role": "assistant"}, reason="stop"), DONE], "a second role"),
        (
            [ROLE, HELLO | {"system_fingerprint": "f"}, STOP | {"system_fingerprint": "g"}, DONE],
            "fingerprint changed",
        ),
        ([ROLE, HELLO | {"id": "d"}, STOP, DONE], "id changed"),
    ],
)
def test_check_stream_with_variants_rejects_rule_violations(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*payloads), include_usage=False, allow_variants=True)


def test_check_stream_accepts_valid_logprobs():
    good = build_scored_chunk(token="a", logprob=-1, bytes=[97], top_logprobs=TOP)
    check_stream(sse(ROLE, good, STOP, DONE), include_usage=False)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([], r"no \[DONE\]"),
        ([ROLE, HELLO, STOP], r"no \[DONE\]"),
        ([ROLE, HELLO, DONE], "without finish_reason"),
        ([DONE], "without finish_reason"),
        ([ROLE, STOP, DONE, STOP], "after .DONE."),
        ([ROLE, STOP, USAGE, DONE], "not requested"),
        ([HELLO, STOP, DONE], "has no role"),
        ([chat({"role": "assistant", "content": "x"}), STOP, DONE], "more than a role"),
        ([ROLE, ROLE, STOP, DONE], "a second role"),
        ([ROLE, STOP, HELLO, DONE], "after finish_reason"),
        ([ROLE, STOP, STOP, DONE], "after finish_reason"),
        ([chat({"role": "assistant"}, index=1)], "before choice 0"),
        ([ROLE, chat({"content": ""}), STOP, DONE], "empty field"),
        ([ROLE, chat({"content": None}), STOP, DONE], "empty field"),
        ([ROLE, chat({"content": "a", "refusal": "b"}), STOP, DONE], "one field"),
        ([ROLE, chat({}), STOP, DONE], "one field"),
        ([ROLE, chat({"vendor": "a"}), STOP, DONE], "unknown fields"),
        ([ROLE, chat({"reasoning": "a", "reasoning_content": "b"}), STOP, DONE], "differ"),
        ([ROLE, chat({"content": "x"}, reason="stop"), DONE], "not empty"),
        ([ROLE, chat({}, reason="tool_call"), DONE], "finish_reason is"),
        ([ROLE, chat({}, reason="tool_calls"), DONE], "without a call"),
        ([ROLE, HELLO | {"id": "d"}, STOP, DONE], "id changed"),
        ([ROLE, HELLO | {"created": 2}, STOP, DONE], "created changed"),
        ([ROLE, HELLO | {"model": "n"}, STOP, DONE], "model changed"),
        ([ROLE, HELLO | {"system_fingerprint": "n"}, STOP, DONE], "fingerprint changed"),
        ([ROLE | {"object": "chat.completions"}], "object is"),
        (
            [ROLE, {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}],
            "choices is None",
        ),
        ([ROLE, chat(ARGUMENTS), CALLED, DONE], "without id"),
        (
            [ROLE, chat(call(1, id="c", type="function", function={"name": "f"})), CALLED, DONE],
            "open is -1",
        ),
        (
            [ROLE, chat(call(0, id="", type="function", function={"name": "f"})), CALLED, DONE],
            "without id",
        ),
        (
            [ROLE, chat(call(0, id="c", type="function", function={"name": ""})), CALLED, DONE],
            "without id",
        ),
        ([ROLE, chat(BEGIN_CALL), chat(BEGIN_CALL), CALLED, DONE], "repeated"),
        (
            [
                ROLE,
                chat(BEGIN_CALL),
                chat(call(0, function={"name": "f", "arguments": "x"})),
                CALLED,
                DONE,
            ],
            "repeated",
        ),
        (
            [
                ROLE,
                chat(BEGIN_CALL),
                chat(call(0, id=None, function={"arguments": "x"})),
                CALLED,
                DONE,
            ],
            "repeated",
        ),
        ([ROLE, chat({"tool_calls": [{"id": "c"}]}), CALLED, DONE], "index of a call"),
        ([ROLE, chat({"function_call": {"arguments": "x"}})], "named 0 times"),
        ([ROLE, ERROR, DONE], "DONE. after an error"),
        ([ROLE, ERROR, STOP, DONE], "chunk after an error"),
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
        check_stream(sse(*payloads), include_usage=False)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([ROLE, HELLO, STOP, DONE], "is missing"),
        ([ROLE, USAGE, STOP, DONE], "before all choices ended"),
        ([ROLE, STOP, USAGE, USAGE, DONE], "after the one with usage"),
        ([ROLE, STOP, USAGE | {"usage": None}, DONE], "usage is None"),
        ([ROLE, STOP, USAGE | {"usage": COUNTS | {"total_tokens": 4}}, DONE], "expected 3"),
        (
            [
                ROLE,
                STOP,
                USAGE | {"usage": COUNTS | {"prompt_tokens_details": {"cached_tokens": 2}}},
                DONE,
            ],
            "more cached",
        ),
    ],
)
def test_check_stream_rejects_misplaced_usage(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*payloads), include_usage=True)


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
        "usage": COUNTS,
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
        (build_object({}, "tool_calls"), "without a call"),
        (build_object({}, None), "finish_reason is None"),
        (build_object({}, index=1), "not dense"),
        (build_object({}, message={"role": "assistant", "content": None}), "has no refusal"),
        (build_object({}, logprobs={"content": [{}]}), "token is None"),
        (EMPTY, "object is None"),
    ],
)
def test_check_object_rejects_each_rule_violation(answer: Any, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object(answer)
