"""Handwritten streams, in which tests break one rule at a time."""

from __future__ import annotations

import json
from typing import Any

from dragoman_check.rules.json_values import JsonObject

DONE = "[DONE]"
TOKEN_COUNTS: JsonObject = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def encode_sse(*payloads: object) -> bytes:
    texts = (payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def build_chat_chunk(
    delta: JsonObject, *, reason: str | None = None, index: int = 0, **more: Any
) -> JsonObject:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def build_text_chunk(
    piece: str, *, reason: str | None = None, index: int = 0, **more: Any
) -> JsonObject:
    choice = {"index": index, "text": piece, "logprobs": None, "finish_reason": reason}
    return {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }


def build_call_delta(index: int, **more: Any) -> JsonObject:
    return {"tool_calls": [{"index": index, **more}]}


ROLE = build_chat_chunk({"role": "assistant", "content": ""})
HELLO = build_chat_chunk({"content": "hello"})
STOP = build_chat_chunk({}, reason="stop")
USAGE: JsonObject = build_chat_chunk({}) | {"choices": [], "usage": TOKEN_COUNTS}
ERROR = {"error": {"message": "m", "type": "t", "param": None, "code": None}}
CALL_START = build_call_delta(0, id="c1", type="function", function={"name": "f", "arguments": ""})
CALL_ARGUMENTS = build_call_delta(0, function={"arguments": "{}"})
TOOL_CALLS_FINISH = build_chat_chunk({}, reason="tool_calls")
