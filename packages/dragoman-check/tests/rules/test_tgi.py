"""The checker of TGI's grammar detects each broken rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman_check.rules.json_values import Violation
from dragoman_check.rules.tgi import check_lightllm, check_object, check_stream

from .streams import DONE, Json, sse

ENDED: Json = {"finish_reason": "eos_token", "generated_tokens": 2, "input_length": 3, "seed": None}


def token(text: str, id: int | None = 1, **more: Any) -> Json:
    return {"id": id, "text": text, "logprob": -0.5, "special": False, **more}


def event(index: int, text: str, whole: str | None = None, **more: Any) -> Json:
    return {"index": index, "token": token(text), "generated_text": whole, "details": None, **more}


HI = event(1, "hi")
END = event(2, " you", "hi you", details=ENDED)
ERROR = {"error": "no", "error_type": "generation"}
DETAILS: Json = {
    "finish_reason": "length",
    "generated_tokens": 1,
    "seed": None,
    "prefill": [],
    "tokens": [token("hi")],
}
OWN: Json = {
    "generated_text": ["hi"],
    "count_output_tokens": 1,
    "finish_reason": "stop",
    "prompt_tokens": 2,
}


@pytest.mark.parametrize(
    "payloads", [[HI, END], [HI, ERROR], [event(1, "", "", token=token("", -1, logprob=None))]]
)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(sse(*payloads))


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HI, END, DONE], r"\[DONE\]"),
        ([HI, ERROR, END], "after an error"),
        ([HI], "never finished"),
        ([], "never finished"),
        ([HI, END, event(3, "!")], "after the last"),
        ([HI, event(3, " you", "hi you")], "index is 3"),
        ([HI, event(2, " you", "hi")], "not the text of the tokens"),
        ([HI, END | {"details": ENDED | {"finish_reason": "stop"}}], "finish_reason"),
        ([HI | {"details": ENDED}, END], "before the end"),
        ([HI | {"finished": True}, END], "finished is not"),
        ([HI | {"token": token("hi", -2)}, END], "token.id"),
        ([HI | {"token": token("hi", logprob=0.5)}, END], "token.logprob is"),
        ([HI | {"token": token("hi", special=None)}, END], "special"),
        ([{"error": "no", "error_type": "bad"}], "error_type"),
        ([{"error": {"message": "no"}, "error_type": "generation"}], "error is"),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*payloads))


def test_check_object_accepts_valid_objects():
    check_object({"generated_text": "hi"})
    check_object({"generated_text": "hi", "details": DETAILS})
    check_lightllm(OWN)
    check_lightllm(OWN | {"tokens": [token("hi", count_output_tokens=1)]})


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ({"generated_tokens": 2}, "generated_tokens is 2"),
        ({"finish_reason": None}, "finish_reason"),
        ({"prefill": None}, "prefill"),
        ({"top_tokens": []}, "other tokens"),
    ],
)
def test_check_object_rejects_invalid_details(broken: Json, rule: str):
    with pytest.raises(Violation, match=rule):
        check_object({"generated_text": "hi", "details": DETAILS | broken})


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        ({"generated_text": "hi"}, "array"),
        ({"generated_text": ["hi", "ho"]}, "one text"),
        ({"finish_reason": "eos_token"}, "finish_reason"),
        ({"prompt_tokens": None}, "prompt_tokens"),
        ({"tokens": [token("h"), token("i")]}, "count_output_tokens is 1"),
        ({"tokens": [token("hi", count_output_tokens=2)]}, "one by one"),
    ],
)
def test_check_lightllm_rejects_each_rule_violation(broken: Json, rule: str):
    with pytest.raises(Violation, match=rule):
        check_lightllm(OWN | broken)
