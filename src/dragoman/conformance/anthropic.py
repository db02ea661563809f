"""The wire grammar of Anthropic Messages, for the streams and objects of any server.

the stream:  message_start  block*  message_delta  message_stop; a ping anywhere; an error ends it at any point
each block:  content_block_start(i)  content_block_delta(i)*  content_block_stop(i); one open at a time, i = 0, 1, 2 ...
its deltas:  text_delta* | thinking_delta* signature_delta | input_json_delta*
"""

from __future__ import annotations

import json

from .sse import named
from .violation import Json, Violation, a_count, a_key, a_text, an_object, must, objects

REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)
COMPLETE = ("end_turn", "tool_use", "pause_turn")
"""With these the model ended its calls by itself: their inputs are JSON."""
ERRORS = (
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
)
EMPTY: dict[str, Json] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "redacted_thinking": {},
    "tool_use": {"input": {}},
}
"""How a block of each kind begins: what it has in these fields."""
COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def check_stream(data: bytes) -> list[Json]:
    """The events without pings, if they keep the rules. Raises Violation."""
    events = [event for event in named(data) if event["type"] != "ping"]
    state = _State()
    for event in events:
        state.feed(event)
    state.close()
    return events


class _Block:
    """The block that is open. It may get no more deltas once its signature has come."""

    def __init__(self, index: int, kind: str) -> None:
        self.index, self.kind = index, kind
        self.signed = False
        self.input: list[str] = []


class _State:
    """Where the stream is."""

    def __init__(self) -> None:
        self._started = self._stopped = self._failed = False
        self._delta: Json | None = None
        self._block: _Block | None = None
        self._closed: list[_Block] = []

    def feed(self, event: Json) -> None:
        must(not self._failed, "an event after an error")
        must(not self._stopped, "an event after message_stop")
        kind = event["type"]
        if kind == "error":
            check_error(event)
            self._failed = True
            return
        must(self._started != (kind == "message_start"), f"{kind}, where message_start has to come first and once")
        must(self._delta is None or kind == "message_stop", f"{kind} after message_delta")
        match kind:
            case "message_start":
                self._start(an_object(event.get("message"), "message"))
            case "content_block_start":
                self._open(event)
            case "content_block_delta":
                self._extend(event)
            case "content_block_stop":
                self._end(event)
            case "message_delta":
                self._finish(event)
            case "message_stop":
                must(self._delta is not None, "message_stop without message_delta")
                self._stopped = True
            case _:
                raise Violation(f"an event of type {kind!r}")

    def close(self) -> None:
        must(self._failed or self._stopped, "the stream ends without message_stop")

    def _start(self, message: Json) -> None:
        self._started = True
        _check_frame(message)
        must(message.get("content") == [], "message_start has content")
        for key in ("stop_reason", "stop_sequence"):
            a_key(message, key, "message")
            must(message[key] is None, f"message_start has a {key}")

    def _open(self, event: Json) -> None:
        index, block = a_count(event.get("index"), "index"), an_object(event.get("content_block"), "content_block")
        must(self._block is None, f"block {index} begins while another is open")
        must(index == len(self._closed), f"block {index} begins, expected {len(self._closed)}")
        kind = block.get("type")
        must(kind in EMPTY, f"a block of type {kind!r}")
        begun = all(block.get(key) == value for key, value in EMPTY[str(kind)].items())
        must(begun, f"block {index} begins with {block}")
        if kind == "tool_use":
            must(a_text(block.get("id"), "id") and a_text(block.get("name"), "name"), "a call without id or name")
        self._block = _Block(index, str(kind))

    def _extend(self, event: Json) -> None:
        block, delta = self._the_block(event), an_object(event.get("delta"), "delta")
        at = f"block {block.index}"
        must(not block.signed, f"{at}: a delta after the signature")
        match block.kind, delta.get("type"):
            case "text", "text_delta":
                must(a_text(delta.get("text"), "text"), f"{at}: an empty delta")
            case "thinking", "thinking_delta":
                must(a_text(delta.get("thinking"), "thinking"), f"{at}: an empty delta")
            case "thinking", "signature_delta":
                a_text(delta.get("signature"), "signature")
                block.signed = True
            case "tool_use", "input_json_delta":
                block.input.append(a_text(delta.get("partial_json"), "partial_json"))
                must(block.input[-1] or len(block.input) == 1, f"{at}: an empty delta")
            case kind, other:
                raise Violation(f"{at}: {other!r} in a {kind} block")

    def _end(self, event: Json) -> None:
        block = self._the_block(event)
        must(block.kind != "thinking" or block.signed, f"block {block.index}: a thought without a signature_delta")
        self._closed.append(block)
        self._block = None

    def _finish(self, event: Json) -> None:
        must(self._block is None, "message_delta while a block is open")
        self._delta = an_object(event.get("delta"), "delta")
        _check_end(self._delta)
        _check_usage(event.get("usage"), ("output_tokens",))
        reason = self._delta["stop_reason"]
        calls = [block for block in self._closed if block.kind == "tool_use"]
        must(reason != "tool_use" or calls, "stop_reason is tool_use without a call")
        for block in calls if reason in COMPLETE else calls[:-1]:
            _check_input("".join(block.input), f"block {block.index}")

    def _the_block(self, event: Json) -> _Block:
        index = a_count(event.get("index"), "index")
        must(self._block is not None and self._block.index == index, f"{event['type']} of block {index}, not open")
        assert self._block is not None
        return self._block


def check_object(whole: Json) -> None:
    """A whole message. Raises Violation."""
    _check_frame(whole)
    content = objects(whole.get("content"), "content")
    for i, block in enumerate(content):
        _check_block(block, f"content[{i}]")
    _check_end(whole)
    called = any(block["type"] == "tool_use" for block in content)
    must(whole["stop_reason"] != "tool_use" or called, "stop_reason is tool_use without a call")


def check_error(body: Json) -> None:
    """An error's envelope, in a body or in an event. Raises Violation."""
    must(body.get("type") == "error", f"type is {body.get('type')!r}")
    error = an_object(body.get("error"), "error")
    must(error.get("type") in ERRORS, f"error.type is {error.get('type')!r}")
    must(a_text(error.get("message"), "error.message"), "error.message is empty")
    if "request_id" in body:
        a_text(body["request_id"], "request_id")


def _check_frame(message: Json) -> None:
    must(message.get("type") == "message", f"type is {message.get('type')!r}")
    must(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    must(a_text(message.get("id"), "id"), "id is empty")
    a_text(message.get("model"), "model")
    _check_usage(message.get("usage"), ("input_tokens", "output_tokens"))


def _check_block(block: Json, at: str) -> None:
    match block.get("type"):
        case "text":
            must(a_text(block.get("text"), f"{at}.text"), f"{at}: an empty text")
        case "thinking":
            a_text(block.get("thinking"), f"{at}.thinking")
            a_text(block.get("signature"), f"{at}.signature")
        case "redacted_thinking":
            a_text(block.get("data"), f"{at}.data")
        case "tool_use":
            must(a_text(block.get("id"), f"{at}.id") and a_text(block.get("name"), f"{at}.name"), f"{at}: unnamed")
            an_object(block.get("input"), f"{at}.input")
        case kind:
            raise Violation(f"{at} is of type {kind!r}")


def _check_end(end: Json) -> None:
    for key in ("stop_reason", "stop_sequence"):
        a_key(end, key, "the end")
    must(end["stop_reason"] in REASONS, f"stop_reason is {end['stop_reason']!r}")
    matched = end["stop_sequence"] is not None
    must(matched == (end["stop_reason"] == "stop_sequence"), "stop_sequence and stop_reason contradict each other")


def _check_usage(value: object, required: tuple[str, ...]) -> None:
    usage = an_object(value, "usage")
    for key in COUNTS:
        if key in required or usage.get(key) is not None:
            a_count(usage.get(key), f"usage.{key}")
    details = usage.get("output_tokens_details")
    if details is not None:
        thought = a_count(an_object(details, "output_tokens_details").get("thinking_tokens"), "thinking_tokens")
        must(thought <= usage["output_tokens"], "more thinking_tokens than output_tokens")


def _check_input(text: str, at: str) -> None:
    try:
        an_object(json.loads(text or "{}"), f"{at}: the input")
    except ValueError:
        raise Violation(f"{at}: the input is not JSON: {text[:40]!r}") from None
