"""The checker of TGI's grammar detects each changes rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman_check.rules.json_values import Violation
from dragoman_check.rules.tgi import check_object, check_stream

from .streams import DONE, JsonObject, encode_sse

FINAL_DETAILS: JsonObject = {
    "finish_reason": "eos_token",
    "generated_tokens": 2,
    "input_length": 3,
    "seed": None,
}


def build_token(text: str, id: int | None = 1, **more: Any) -> JsonObject:
    return {"id": id, "text": text, "logprob": -0.5, "special": False, **more}


def build_event(index: int, text: str, whole: str | None = None, **more: Any) -> JsonObject:
    return {
        "index": index,
        "token": build_token(text),
        "generated_text": whole,
        "details": None,
        **more,
    }


HI = build_event(1, "hi")
END = build_event(2, " you", "hi you", details=FINAL_DETAILS)
ERROR = {"error": "no", "error_type": "generation"}
DETAILS: JsonObject = {
    "finish_reason": "length",
    "generated_tokens": 1,
    "seed": None,
    "prefill": [],
    "tokens": [build_token("hi")],
}


@pytest.mark.parametrize(
    "payloads",
    [[HI, END], [HI, ERROR], [build_event(1, "", "", token=build_token("", -1, logprob=None))]],
)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(encode_sse(*payloads))


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HI, END, DONE], r"\[DONE\]"),
        ([HI, ERROR, END], "follows an error"),
        ([HI], "no final event"),
        ([], "no final event"),
        ([HI, END, build_event(3, "!")], "follows the final"),
        ([HI, build_event(3, " you", "hi you")], "index is 3"),
        ([HI, build_event(2, " you", "hi")], "differs from the concatenated tokens"),
        ([HI, END | {"details": FINAL_DETAILS | {"finish_reason": "stop"}}], "finish_reason"),
        ([HI | {"details": FINAL_DETAILS}, END], "before the final"),
        ([HI | {"token": build_token("hi", -2)}, END], "token.id"),
        ([HI | {"token": build_token("hi", logprob=0.5)}, END], "token.logprob is"),
        ([HI | {"token": build_token("hi", special=None)}, END], "special"),
        ([{"error": "no", "error_type": "bad"}], "error_type"),
        ([{"error": {"message": "no"}, "error_type": "generation"}], "error is"),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_sse(*payloads))


def test_check_object_accepts_valid_objects():
    check_object({"generated_text": "hi"})
    check_object({"generated_text": "hi", "details": DETAILS})


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"generated_tokens": 2}, "generated_tokens is 2"),
        ({"finish_reason": None}, "finish_reason"),
        ({"prefill": None}, "prefill"),
        ({"top_tokens": []}, "has 0 entries, expected 1"),
    ],
)
def test_check_object_rejects_invalid_details(changes: JsonObject, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object({"generated_text": "hi", "details": DETAILS | changes})
