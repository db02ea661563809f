"""Handwritten streams, in which tests break one rule at a time."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
DONE = "[DONE]"
COUNTS: Json = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def sse(*payloads: object) -> bytes:
    texts = (payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def chat(delta: Json, *, reason: str | None = None, index: int = 0, **more: Any) -> Json:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def text(piece: str, *, reason: str | None = None, index: int = 0, **more: Any) -> Json:
    choice = {"index": index, "text": piece, "logprobs": None, "finish_reason": reason}
    return {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def call(index: int, **more: Any) -> Json:
    return {"tool_calls": [{"index": index, **more}]}


ROLE = chat({"role": "assistant", "content": ""})
HELLO = chat({"content": "hello"})
STOP = chat({}, reason="stop")
USAGE: Json = chat({}) | {"choices": [], "usage": COUNTS}
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": None}}
BEGIN_CALL = call(0, id="c1", type="function", function={"name": "f", "arguments": ""})
ARGUMENTS = call(0, function={"arguments": "{}"})
CALLED = chat({}, reason="tool_calls")
