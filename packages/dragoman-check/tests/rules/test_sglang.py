"""The checker of the grammar of SGLang's /generate detects each broken rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman_check.rules.json_values import Violation
from dragoman_check.rules.sglang import check_stream

from .streams import DONE, ERROR, Json, sse


def so_far(text: str, ids: list[int], reason: Any = None, /, **meta: object) -> Json:
    meta_info = {
        "id": "a",
        "finish_reason": reason,
        "prompt_tokens": 2,
        "completion_tokens": len(ids),
        **meta,
    }
    return {"text": text, "output_ids": ids, "meta_info": meta_info}


STOP = {"type": "stop", "matched": None}
HI = so_far("hi", [1])
END = so_far("hi you", [1, 2], STOP)
SCORED = {
    "input_token_logprobs": [],
    "output_token_logprobs": [[-1.0, 1, None]],
    "output_token_logprobs_length": 1,
}


@pytest.mark.parametrize(
    "payloads",
    [
        [HI, END, DONE],
        [so_far("", [], {"type": "length", "length": 0}), DONE],
        [so_far("hi", [1], STOP, **SCORED), DONE],
        [
            so_far(
                "hi",
                [1],
                STOP,
                weight_version="v",
                weight_versions=[{"version": "v", "start": 0, "end": 1}],
            ),
            DONE,
        ],
        [HI, ERROR],
    ],
)
def test_check_stream_accepts_valid_stream(payloads: list[object]):
    check_stream(sse(*payloads))


def test_check_stream_separates_choices():
    one = so_far("a", [1], STOP) | {"index": 0}
    two = so_far("b", [2], STOP) | {"index": 1}
    assert [each["text"] for each in check_stream(sse(two, one, DONE), choices=2)] == ["a", "b"]
    with pytest.raises(Violation, match="2 choices"):
        check_stream(sse(one, DONE), choices=2)


SPLIT = [{"version": "v", "start": 0, "end": 1}, {"version": "w", "start": 2, "end": 2}]


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HI, END], r"no \[DONE\]"),
        ([HI, ERROR, DONE], "after an error"),
        ([HI, DONE], "never finished"),
        ([HI, END, END, DONE], "after the one that finished"),
        ([HI, so_far("ho", [1, 2], STOP), DONE], "text does not start"),
        ([HI, so_far("hi", [2], STOP), DONE], "ids do not start"),
        ([HI, so_far("hi", [1], STOP, id="b"), DONE], "id changed"),
        ([so_far("hi", [1], STOP, completion_tokens=2), DONE], "completion_tokens"),
        ([so_far("hi", [1], {"type": "gone"}), DONE], "finish_reason"),
        ([so_far("hi", [2], STOP, **SCORED), DONE], "other tokens"),
        (
            [so_far("hi", [1], STOP, **(SCORED | {"output_token_logprobs_length": 2})), DONE],
            "length is wrong",
        ),
        ([so_far("hi", [1, 2], STOP, weight_version="w", weight_versions=SPLIT), DONE], "a gap"),
        (
            [so_far("hi", [1, 2], STOP, weight_version="v", weight_versions=SPLIT), DONE],
            "last token",
        ),
        (
            [so_far("hi", [1, 2], STOP, weight_version="v", weight_versions=SPLIT[:1]), DONE],
            "end before",
        ),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(sse(*payloads))
