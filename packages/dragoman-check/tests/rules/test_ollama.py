"""The checker of Ollama's grammar detects each broken rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman_check.rules.json_values import Violation
from dragoman_check.rules.ollama import COUNTS, check_error, check_object, check_stream, fold_chunks

from .streams import JsonObject

HEAD: JsonObject = {"model": "m", "created_at": "2026-01-02T03:04:05.123456789+02:00"}
CALL: JsonObject = {"id": "call_1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
ALL_COUNTS: JsonObject = dict.fromkeys(COUNTS, 1)
LOGPROB: JsonObject = {
    "token": "a",
    "logprob": -0.5,
    "bytes": [97],
    "top_logprobs": [{"token": "b", "logprob": -1}],
}


def build_chunk(
    content: str = "", *, done: bool = False, more: JsonObject | None = None, **message: Any
) -> JsonObject:
    end: JsonObject = {"done_reason": "stop", **ALL_COUNTS} if done else {}
    reply = {"role": "assistant", "content": content, **message}
    return {**HEAD, "message": reply, "done": done, **end, **(more or {})}


def encode_lines(*payloads: object) -> bytes:
    return b"".join(json.dumps(payload).encode() + b"\n" for payload in payloads)


HI = build_chunk("hi")
END = build_chunk(done=True)
ERROR = {"error": "no"}


@pytest.mark.parametrize(
    "payloads",
    [
        [HI, END],
        [END],
        [HI, ERROR],
        [ERROR],
        [build_chunk(thinking="hm"), build_chunk(tool_calls=[CALL]), END],
        [build_chunk("a", more={"logprobs": [LOGPROB]}), END],
        [build_chunk(more={"logprobs": [LOGPROB]}), END],
    ],
)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(encode_lines(*payloads), is_chat=True)


def test_check_stream_ignores_whitespace_before_lines():
    assert len(check_stream(b" " + encode_lines(HI) + b"  " + encode_lines(END), is_chat=True)) == 2


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HI], "`done` is true"),
        ([], "`done` is true"),
        ([HI, END, HI], "follows the final"),
        ([ERROR, HI], "follows an error"),
        ([{"error": ""}], "empty"),
        ([{**HI, "model": ""}, END], "model is empty"),
        ([{**HI, "model": "n"}, END], "the model changes"),
        ([{**HI, "created_at": "yesterday"}, END], "created_at"),
        ([{**HI, "done": None}, END], "done is None"),
        ([{**HI, "message": "hi"}, END], "message"),
        ([build_chunk("hi", role="user"), END], "role"),
        ([build_chunk("hi", thinking=""), END], "thinking is empty"),
        ([build_chunk(), END], "a chunk has no content"),
        ([{**HI, "done_reason": "stop"}, END], "before the final"),
        ([{**HI, "eval_count": 1}, END], "before the final"),
        ([{**HI, "context": [1]}, END], "before the final"),
        ([HI, {**END, "done_reason": "eos"}], "done_reason"),
        ([HI, {**END, "eval_count": -1}], "eval_count"),
        ([HI, {**END, "context": ["a"]}], "context"),
        (
            [build_chunk(tool_calls=[{"function": {"name": "f", "arguments": "{}"}}]), END],
            "arguments",
        ),
        ([build_chunk(tool_calls=[{"function": {"name": "", "arguments": {}}}]), END], "no name"),
        ([build_chunk(tool_calls=[CALL, CALL]), END], "index"),
        ([build_chunk("a", more={"logprobs": [{**LOGPROB, "logprob": 1}]}), END], "logprob"),
        ([build_chunk("a", more={"logprobs": [{**LOGPROB, "bytes": [256]}]}), END], "byte"),
        (
            [
                build_chunk("a", more={"logprobs": [{**LOGPROB, "top_logprobs": [{"token": 1}]}]}),
                END,
            ],
            "token",
        ),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_lines(*payloads), is_chat=True)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (encode_lines(HI, END)[:-1], "inside a line"),
        (encode_lines(HI) + b"\n" + encode_lines(END), "an empty line, or several"),
        (
            json.dumps(build_chunk("\u2028"), ensure_ascii=False).encode() + b"\n",
            "an empty line, or several",
        ),
        (b"{\n", "not JSON"),
        (b'{"a": NaN}\n', "NaN"),
        (b"[]\n", "expected an object"),
    ],
)
def test_check_stream_rejects_incomplete_json_lines(data: bytes, rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(data, is_chat=True)


def test_check_object_requires_text_and_done():
    body: JsonObject = {
        **HEAD,
        "response": "hi",
        "done": True,
        "done_reason": "length",
        "context": [1],
        **ALL_COUNTS,
    }
    check_object(body, is_chat=False)
    with pytest.raises(Violation, match="the text"):
        check_object({**body, "response": None}, is_chat=False)
    with pytest.raises(Violation, match="done is false"):
        check_object(HI, is_chat=True)
    check_object({**HEAD, "response": "", "done": True, "done_reason": "load"}, is_chat=False)


def test_check_error_requires_string_message():
    check_error({"error": "no"})
    with pytest.raises(Violation, match="expected a string"):
        check_error({"error": {"message": "no"}})


def test_fold_chunks_equals_full_object():
    chunks = [
        build_chunk(thinking="hm"),
        build_chunk("a", more={"logprobs": [LOGPROB]}),
        build_chunk(tool_calls=[CALL]),
        END,
    ]
    whole = build_chunk(
        "a", done=True, thinking="hm", tool_calls=[CALL], more={"logprobs": [LOGPROB]}
    )
    assert fold_chunks(check_stream(encode_lines(*chunks), is_chat=True), is_chat=True) == whole
