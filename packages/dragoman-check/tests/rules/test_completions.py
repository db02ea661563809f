"""The checker of the Completions grammar detects each broken rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman_check.rules.completions import check_object, check_stream
from dragoman_check.rules.json_values import Violation

from .streams import DONE, ERROR, TOKEN_COUNTS, JsonObject, build_text_chunk, encode_sse

HELLO = build_text_chunk("hello")
STOP = build_text_chunk("", reason="stop")
USAGE: JsonObject = build_text_chunk("") | {"choices": [], "usage": TOKEN_COUNTS}
COLUMNS: JsonObject = {
    "text_offset": [0],
    "token_logprobs": [-1.0],
    "tokens": ["a"],
    "top_logprobs": [{"a": -1.0}],
}


def build_scored_chunk(columns: Any) -> Any:
    choice = {"index": 0, "text": "a", "logprobs": columns, "finish_reason": None}
    return HELLO | {"choices": [choice]}


@pytest.mark.parametrize(
    "payloads",
    [
        [HELLO, STOP, DONE],
        [build_text_chunk("hello", reason="length"), DONE],
        [
            build_text_chunk("b", index=1),
            HELLO,
            STOP,
            build_text_chunk("", reason="stop", index=1),
            DONE,
        ],
        [build_scored_chunk(COLUMNS), STOP, DONE],
        [
            build_scored_chunk(COLUMNS | {"token_logprobs": [None], "top_logprobs": [None]}),
            STOP,
            DONE,
        ],
        [HELLO, ERROR],
    ],
)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(encode_sse(*payloads), include_usage=False)


def test_check_stream_accepts_requested_usage():
    check_stream(encode_sse(HELLO, STOP, USAGE, DONE), include_usage=True)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HELLO, STOP], r"has no \[DONE\]"),
        ([HELLO, DONE], "has no finish_reason"),
        ([HELLO, STOP, USAGE, DONE], "without include_usage"),
        ([HELLO, STOP, STOP, DONE], "follows finish_reason"),
        (
            [build_text_chunk("x", index=1), build_text_chunk("", reason="stop", index=1), DONE],
            "has no finish_reason",
        ),
        ([build_text_chunk("", reason="tool_calls"), DONE], "finish_reason is"),
        ([HELLO, STOP | {"id": "d"}, DONE], "id changed"),
        ([HELLO | {"object": "completion"}], "object is"),
        ([HELLO, ERROR, DONE], "DONE. after an error"),
        (
            [HELLO | {"choices": [{"index": 0, "text": "x", "finish_reason": None}]}],
            "has no logprobs",
        ),
        (
            [HELLO | {"choices": [{"index": 0, "text": "x", "logprobs": None}]}],
            "has no finish_reason",
        ),
        ([HELLO | {"choices": [{"index": 0}]}], "text is None"),
        ([build_scored_chunk(COLUMNS | {"tokens": []})], "differ in length"),
        ([build_scored_chunk(COLUMNS | {"tokens": None})], "tokens is None"),
        ([build_scored_chunk(COLUMNS | {"tokens": ["b"]})], "not among"),
        ([build_scored_chunk(COLUMNS | {"token_logprobs": [None]})], "only one of"),
        ([build_scored_chunk(COLUMNS | {"token_logprobs": [0.5]})], "above 0"),
        (
            [build_scored_chunk(COLUMNS | {"text_offset": [3]}), build_scored_chunk(COLUMNS)],
            "text_offset decreases",
        ),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_sse(*payloads), include_usage=False)


def test_check_stream_rejects_misplaced_usage():
    with pytest.raises(Violation, match="precedes the end of a choice"):
        check_stream(encode_sse(HELLO, USAGE, STOP, DONE), include_usage=True)
    with pytest.raises(Violation, match="no usage chunk"):
        check_stream(encode_sse(HELLO, STOP, DONE), include_usage=True)


RESPONSE = STOP | {"usage": TOKEN_COUNTS}


def test_check_object_accepts_valid_object():
    check_object(RESPONSE)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (RESPONSE | {"object": "chat.completion"}, "object is"),
        (RESPONSE | {"usage": None}, "usage is None"),
        (RESPONSE | {"choices": HELLO["choices"]}, "finish_reason is null"),
        (
            RESPONSE | {"choices": build_text_chunk("", reason="stop", index=1)["choices"]},
            "not consecutive",
        ),
    ],
)
def test_check_object_rejects_each_rule_violation(answer: Any, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object(answer)
