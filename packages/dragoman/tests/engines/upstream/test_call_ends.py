"""The end of tool calls in answers of Chat Completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core.events import ToolCallDelta, ToolCallStart
from dragoman.core.request import GenerateRequest
from dragoman.engines.upstream.chunk_reader import ChunkReader

FUNCTION = {"name": "add", "arguments": ""}
NAMED: dict[str, Any] = {"index": 0, "id": "c", "function": FUNCTION}
SECOND: dict[str, Any] = {"index": 1, "id": "d", "function": FUNCTION}


def read_calls(*choices: dict[str, Any]) -> list[str]:
    """Return the arguments, or the input, of each call."""
    reader = ChunkReader(GenerateRequest("m", "hi"), lambda: "made")
    events = [
        event
        for choice in choices
        for event in reader.read(json.dumps({"choices": [{"index": 0, **choice}]}).encode())
    ]
    calls: list[str] = []
    for event in (*events, *reader.close()):
        if isinstance(event, ToolCallStart):
            calls.append("")
        elif isinstance(event, ToolCallDelta):
            calls[-1] += event.arguments
    return calls


def build_call_delta(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"delta": {"tool_calls": [*calls]}, "finish_reason": None}


@pytest.mark.parametrize(("reason", "arguments"), [("length", ""), ("tool_calls", "{}")])
def test_call_without_arguments_depends_on_reason(reason: str, arguments: str) -> None:
    whole: dict[str, Any] = {"message": {"role": "assistant", "tool_calls": [NAMED]}}
    end: dict[str, Any] = {"delta": {}, "finish_reason": reason}
    assert read_calls({**whole, "finish_reason": reason}) == [arguments]
    assert read_calls(build_call_delta(NAMED), end) == [arguments]
    assert read_calls(build_call_delta(NAMED), {**end, **whole}) == [arguments]
    assert read_calls(build_call_delta(NAMED), end, {"delta": {}, **whole}) == [arguments]


def test_only_last_call_can_be_cut_by_length() -> None:
    end: dict[str, Any] = {"delta": {}, "finish_reason": "length"}
    assert read_calls(build_call_delta(NAMED, SECOND), end) == ["{}", ""]
    whole: dict[str, Any] = {"role": "assistant", "tool_calls": [NAMED, SECOND]}
    assert read_calls({"message": whole, "finish_reason": "length"}) == ["{}", ""]


def build_custom(text: str, name: str | None = "run") -> dict[str, Any]:
    fields = {"input": text} if name is None else {"name": name, "input": text}
    return build_call_delta({"index": 0, "id": "c", "custom": fields})


END: dict[str, Any] = {"delta": {}, "finish_reason": "tool_calls"}


def test_repeated_whole_custom_call_adds_nothing() -> None:
    assert read_calls(build_custom("ls"), build_custom("ls"), END) == ["ls"]
    assert read_calls(build_custom("l"), build_custom("s", None), END) == ["ls"]
    assert read_calls(build_custom("l"), build_custom("l", None), END) == ["ll"]
