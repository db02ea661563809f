"""The checker of Gemini's grammar detects each broken rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman_check.rules.gemini import (
    check_array,
    check_error,
    check_object,
    check_stream,
    fold_chunks,
)
from dragoman_check.rules.json_values import Violation

from .streams import JsonObject

USAGE = {"promptTokenCount": 2, "candidatesTokenCount": 3, "totalTokenCount": 5}
ERROR = {"error": {"code": 500, "message": "no", "status": "INTERNAL"}}


def build_chunk(*parts: JsonObject, reason: str | None = None, **more: Any) -> JsonObject:
    candidate: JsonObject = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    end: JsonObject = {}
    if reason is not None:
        candidate["finishReason"] = reason
        end["usageMetadata"] = USAGE
    return {"candidates": [candidate], **end, "modelVersion": "m", "responseId": "r", **more}


def encode_events(*payloads: object) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(payload).encode() for payload in payloads)


HI = build_chunk({"text": "hi"})
END = build_chunk({"text": ""}, reason="STOP")


def test_correct_streams_pass_and_fold_to_object():
    whole = build_chunk({"text": "hihi"}, reason="STOP")
    check_object(whole)
    chunks = check_stream(b"\n" + encode_events(HI, HI, END))
    assert fold_chunks(chunks) == fold_chunks([whole])
    assert check_array(json.dumps([HI, HI, END]).encode()) == chunks
    assert check_stream(encode_events(HI, ERROR)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        encode_events(HI),
        encode_events(HI, END)[:-1],
        b": comment\n\n" + encode_events(HI, END),
        encode_events(END, END),
        encode_events(ERROR, END),
        encode_events({"error": {"code": 500, "message": "no", "status": "Bad"}}),
        encode_events(build_chunk(), END),
        encode_events(build_chunk({}), END),
        encode_events(build_chunk({"text": 1}), END),
        encode_events(build_chunk({"text": "a", "functionCall": {"name": "f"}}), END),
        encode_events(build_chunk({"functionCall": {"name": ""}}), END),
        encode_events(build_chunk({"functionCall": {"name": "f", "args": "{}"}}), END),
        encode_events(build_chunk({"text": "a", "thoughtSignature": "?"}), END),
        encode_events(HI, {**END, "responseId": "other"}),
        encode_events(HI, {**END, "candidates": []}),
        encode_events(HI, build_chunk({"text": ""}, reason="stop")),
        encode_events(HI, {**END, "usageMetadata": {**USAGE, "totalTokenCount": 9}}),
        encode_events(HI, {**END, "usageMetadata": {"promptTokenCount": -1}}),
    ],
)
def test_broken_stream_is_violation(data: bytes):
    with pytest.raises(Violation):
        check_stream(data)


@pytest.mark.parametrize("error", [{}, {"error": "no"}, {"error": {**ERROR["error"], "code": 200}}])
def test_broken_error_is_violation(error: JsonObject):
    with pytest.raises(Violation):
        check_error(error)
