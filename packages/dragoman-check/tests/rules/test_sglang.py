"""The checker of the grammar of SGLang's /generate detects each broken rule."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman_check.rules.json_values import Violation
from dragoman_check.rules.sglang import check_stream

from .streams import DONE, ERROR, JsonObject, encode_sse


def build_event(text: str, ids: list[int], reason: Any = None, /, **meta: object) -> JsonObject:
    meta_info = {
        "id": "a",
        "finish_reason": reason,
        "prompt_tokens": 2,
        "completion_tokens": len(ids),
        **meta,
    }
    return {"text": text, "output_ids": ids, "meta_info": meta_info}


STOP = {"type": "stop", "matched": None}
HI = build_event("hi", [1])
END = build_event("hi you", [1, 2], STOP)
LOGPROBS = {
    "input_token_logprobs": [],
    "output_token_logprobs": [[-1.0, 1, None]],
    "output_token_logprobs_length": 1,
}


@pytest.mark.parametrize(
    "payloads",
    [
        [HI, END, DONE],
        [build_event("", [], {"type": "length", "length": 0}), DONE],
        [build_event("hi", [1], STOP, **LOGPROBS), DONE],
        [
            build_event(
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
    check_stream(encode_sse(*payloads))


def test_check_stream_separates_choices():
    one = build_event("a", [1], STOP) | {"index": 0}
    two = build_event("b", [2], STOP) | {"index": 1}
    assert [each["text"] for each in check_stream(encode_sse(two, one, DONE), choices=2)] == [
        "a",
        "b",
    ]
    with pytest.raises(Violation, match="2 choices"):
        check_stream(encode_sse(one, DONE), choices=2)


WEIGHT_VERSIONS = [{"version": "v", "start": 0, "end": 1}, {"version": "w", "start": 2, "end": 2}]


@pytest.mark.parametrize(
    ("payloads", "rule"),
    [
        ([HI, END], r"has no \[DONE\]"),
        ([HI, ERROR, DONE], "after an error"),
        ([HI, DONE], "finish_reason is null"),
        ([HI, END, END, DONE], "follows the one with a finish_reason"),
        ([HI, build_event("ho", [1, 2], STOP), DONE], "text does not start"),
        ([HI, build_event("hi", [2], STOP), DONE], "ids do not start"),
        ([HI, build_event("hi", [1], STOP, id="b"), DONE], "id changed"),
        ([build_event("hi", [1], STOP, completion_tokens=2), DONE], "completion_tokens"),
        ([build_event("hi", [1], {"type": "gone"}), DONE], "finish_reason"),
        ([build_event("hi", [2], STOP, **LOGPROBS), DONE], "differ from output_ids"),
        (
            [
                build_event("hi", [1], STOP, **(LOGPROBS | {"output_token_logprobs_length": 2})),
                DONE,
            ],
            "length is not 1",
        ),
        (
            [
                build_event(
                    "hi", [1, 2], STOP, weight_version="w", weight_versions=WEIGHT_VERSIONS
                ),
                DONE,
            ],
            "a gap",
        ),
        (
            [
                build_event(
                    "hi", [1, 2], STOP, weight_version="v", weight_versions=WEIGHT_VERSIONS
                ),
                DONE,
            ],
            "last token",
        ),
        (
            [
                build_event(
                    "hi", [1, 2], STOP, weight_version="v", weight_versions=WEIGHT_VERSIONS[:1]
                ),
                DONE,
            ],
            "do not end at",
        ),
    ],
)
def test_check_stream_rejects_each_rule_violation(payloads: list[object], rule: str):
    with pytest.raises(Violation, match=rule):
        check_stream(encode_sse(*payloads))
