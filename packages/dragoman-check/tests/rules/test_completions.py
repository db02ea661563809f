"""The checker of the Completions grammar detects each broken rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman_check.rules.completions import check_object, check_stream
from dragoman_check.rules.json_values import Violation

from .streams import COUNTS, DONE, ERROR, Json, sse, text

HELLO = text("hello")
STOP = text("", reason="stop")
USAGE: Json = text("") | {"choices": [], "usage": COUNTS}
COLUMNS: Json = {
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
        [text("hello", reason="length"), DONE],
        [text("b", index=1), HELLO, STOP, text("", reason="stop", index=1), DONE],
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
    check_stream(sse(*payloads), include_usage=False)


def test_check_stream_accepts_requested_usage():
    check_stream(sse(HELLO, STOP, USAGE, DONE), include_usage=True)


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HELLO, STOP], r"no \[DONE\]"),
        ([HELLO, DONE], "without finish_reason"),
        ([HELLO, STOP, USAGE, DONE], "not requested"),
        ([HELLO, STOP, STOP, DONE], "after finish_reason"),
        ([text("x", index=1), text("", reason="stop", index=1), DONE], "without finish_reason"),
        ([text("", reason="tool_calls"), DONE], "finish_reason is"),
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
        ([build_scored_chunk(COLUMNS | {"token_logprobs": [None]})], "alone"),
        ([build_scored_chunk(COLUMNS | {"token_logprobs": [0.5]})], "above 0"),
        (
            [build_scored_chunk(COLUMNS | {"text_offset": [3]}), build_scored_chunk(COLUMNS)],
            "text_offset decreases",
        ),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*payloads), include_usage=False)


def test_check_stream_rejects_misplaced_usage():
    with pytest.raises(Violation, match="before all choices ended"):
        check_stream(sse(HELLO, USAGE, STOP, DONE), include_usage=True)
    with pytest.raises(Violation, match="is missing"):
        check_stream(sse(HELLO, STOP, DONE), include_usage=True)


WHOLE = STOP | {"usage": COUNTS}


def test_check_object_accepts_valid_object():
    check_object(WHOLE)


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (WHOLE | {"object": "chat.completion"}, "object is"),
        (WHOLE | {"usage": None}, "usage is None"),
        (WHOLE | {"choices": HELLO["choices"]}, "finish_reason is null"),
        (WHOLE | {"choices": text("", reason="stop", index=1)["choices"]}, "not dense"),
    ],
)
def test_check_object_rejects_each_rule_violation(answer: Any, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object(answer)
