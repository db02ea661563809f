"""The wire format of Anthropic's Messages: checks of streams, message objects and
errors of any server.

    stream:  message_start  block*  message_delta  message_stop; a ping may occur
             anywhere; an error ends the stream at any point
    block:   content_block_start(i)  content_block_delta(i)*  content_block_stop(i);
             one open at a time, i = 0, 1, 2 ...
    deltas:  (text_delta | citations_delta)* | thinking_delta* signature_delta | input_json_delta*

A result of a hosted tool follows the call that it names, and each call has one unless the
answer was cut off or paused.
"""

from __future__ import annotations

from collections.abc import Sequence

from .event_streams import parse_named_events, parse_object
from .json_values import (
    JsonObject,
    Violation,
    require,
    require_count,
    require_key,
    require_object,
    require_objects,
    require_string,
)

STOP_REASONS = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)
COMPLETE_REASONS = ("end_turn", "tool_use", "pause_turn")
"""Stop reasons after which all tool inputs must be complete JSON."""
ERROR_TYPES = (
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
EMPTY_BLOCKS: dict[str, JsonObject] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "redacted_thinking": {},
    "tool_use": {"input": {}},
    "mcp_tool_use": {"input": {}},
    "mcp_tool_result": {},
    "server_tool_use": {"input": {}},
    "web_search_tool_result": {},
    "code_execution_tool_result": {},
}
"""Type of block -> its fields in content_block_start."""
CALLS = ("tool_use", "mcp_tool_use", "server_tool_use")
"""Types of calls: those that the client makes, and those that the server makes."""
ERROR_CODES = {
    "web_search_tool_result": (
        "invalid_tool_input",
        "unavailable",
        "max_uses_exceeded",
        "too_many_requests",
        "query_too_long",
        "request_too_large",
    ),
    "code_execution_tool_result": (
        "invalid_tool_input",
        "unavailable",
        "too_many_requests",
        "execution_time_exceeded",
    ),
}
"""Type of a hosted tool's result -> the codes of its errors."""
USAGE_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
)


def check_stream(data: bytes) -> list[JsonObject]:
    """Check a stream, and return its events without pings. Raises Violation."""
    events = [event for event in parse_named_events(data) if event["type"] != "ping"]
    state = _MessagesStreamState()
    for event in events:
        state.feed(event)
    state.close()
    return events


class _OpenBlock:
    """The open block.

    is_signed: it has had a signature_delta, after which no delta may follow.
    input_pieces: the partial JSON of a tool call.
    """

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.is_signed = False
        self.input_pieces: list[str] = []


class _MessagesStreamState:
    """State machine that checks the events of one stream."""

    def __init__(self) -> None:
        self._has_started = False
        self._has_stopped = False
        self._has_failed = False
        self._final_delta: JsonObject | None = None
        self._block: _OpenBlock | None = None
        self._closed_blocks: list[_OpenBlock] = []
        self._hosted_blocks: list[JsonObject] = []

    def feed(self, event: JsonObject) -> None:
        require(not self._has_failed, "an event follows an error")
        require(not self._has_stopped, "an event follows message_stop")
        kind = event["type"]
        if kind == "error":
            check_error(event)
            self._has_failed = True
            return
        require(
            self._has_started != (kind == "message_start"),
            f"{kind}: message_start must be the first event, and occur once",
        )
        # The stop reason and usage are final, and SDKs close the message with them.
        require(
            self._final_delta is None or kind == "message_stop", f"{kind} follows message_delta"
        )
        match kind:
            case "message_start":
                self._has_started = True
                message = require_object(event.get("message"), "message")
                _check_message_fields(message)
                require(message.get("content") == [], "message_start has content")
                for key in ("stop_reason", "stop_sequence"):
                    require_key(message, key, "message")
                    require(message[key] is None, f"message_start has a {key}")
            case "content_block_start":
                self._open(event)
            case "content_block_delta":
                self._check_delta(event)
            case "content_block_stop":
                block = self._require_open_block(event)
                require(
                    block.kind != "thinking" or block.is_signed,
                    f"block {block.index}: thinking without a signature_delta",
                )
                self._closed_blocks.append(block)
                self._block = None
            case "message_delta":
                self._finish(event)
            case "message_stop":
                require(self._final_delta is not None, "message_stop without message_delta")
                self._has_stopped = True
            case _:
                raise Violation(f"an event of type {kind!r}")

    def close(self) -> None:
        require(self._has_failed or self._has_stopped, "the stream ends without message_stop")

    def _open(self, event: JsonObject) -> None:
        index = require_count(event.get("index"), "index")
        block = require_object(event.get("content_block"), "content_block")
        require(self._block is None, f"block {index} starts while another is open")
        # Indices count the blocks without gaps: SDKs append the block to a list and
        # then address it by its index.
        require(
            index == len(self._closed_blocks),
            f"block {index} starts, expected {len(self._closed_blocks)}",
        )
        kind = block.get("type")
        require(isinstance(kind, str) and kind in EMPTY_BLOCKS, f"a block of type {kind!r}")
        # The text is sent in deltas only. The SDKs begin with this block and append the
        # deltas to it, so text here would be read twice or be lost.
        is_empty = all(block.get(key) == value for key, value in EMPTY_BLOCKS[str(kind)].items())
        require(is_empty, f"block {index} does not start empty: {block}")
        if kind in CALLS:
            require(
                require_string(block.get("id"), "id") and require_string(block.get("name"), "name"),
                f"a {kind} without id or name",
            )
        if kind in ("mcp_tool_use", "mcp_tool_result"):
            _check_mcp_block(block, f"block {index}")
        if kind in ERROR_CODES:
            _check_hosted_result(block, f"block {index}")
        if kind == "server_tool_use" or kind in ERROR_CODES:
            self._hosted_blocks.append(block)
        if kind == "redacted_thinking":
            require_string(block.get("data"), "data")
        self._block = _OpenBlock(index, str(kind))

    def _check_delta(self, event: JsonObject) -> None:
        block = self._require_open_block(event)
        delta = require_object(event.get("delta"), "delta")
        location = f"block {block.index}"
        # The signature covers the whole thinking text, so nothing may follow it.
        require(not block.is_signed, f"{location}: a delta after the signature")
        match block.kind, delta.get("type"):
            case "text", "text_delta":
                require(require_string(delta.get("text"), "text"), f"{location}: an empty delta")
            case "text", "citations_delta":
                _check_citation(delta.get("citation"), f"{location}: citation")
            case "thinking", "thinking_delta":
                require(
                    require_string(delta.get("thinking"), "thinking"), f"{location}: an empty delta"
                )
            case "thinking", "signature_delta":
                require_string(delta.get("signature"), "signature")
                block.is_signed = True
            case kind, "input_json_delta" if kind in CALLS:
                # Anthropic's API begins a call with an empty partial_json; later ones
                # carry nothing.
                block.input_pieces.append(require_string(delta.get("partial_json"), "partial_json"))
                require(
                    block.input_pieces[-1] or len(block.input_pieces) == 1,
                    f"{location}: an empty delta",
                )
            case kind, other:
                raise Violation(f"{location}: {other!r} in a {kind} block")

    def _finish(self, event: JsonObject) -> None:
        require(self._block is None, "message_delta while a block is open")
        self._final_delta = require_object(event.get("delta"), "delta")
        _check_end(self._final_delta, "delta")
        _check_usage(event.get("usage"), ("output_tokens",))
        reason = self._final_delta["stop_reason"]
        calls = [block for block in self._closed_blocks if block.kind in CALLS]
        has_tool_use = any(block.kind == "tool_use" for block in calls)
        require(
            reason != "tool_use" or has_tool_use, "stop_reason is tool_use without a tool_use block"
        )
        _check_pairs(self._hosted_blocks, is_complete=reason in ("end_turn", "tool_use"))
        # Blocks are generated one after another, so only the last can be cut off, for
        # example by max_tokens.
        for block in calls if reason in COMPLETE_REASONS else calls[:-1]:
            # A call without arguments may have no deltas: clients read that as {}.
            parse_object("".join(block.input_pieces) or "{}", f"block {block.index}: the input")

    def _require_open_block(self, event: JsonObject) -> _OpenBlock:
        index = require_count(event.get("index"), "index")
        require(
            self._block is not None and self._block.index == index,
            f"{event['type']} of block {index}, which is not open",
        )
        assert self._block is not None
        return self._block


def check_object(message: JsonObject) -> None:
    """Check a full message. Raises Violation."""
    _check_message_fields(message)
    content = require_objects(message.get("content"), "content")
    for i, block in enumerate(content):
        location = f"content[{i}]"
        match block.get("type"):
            case "text":
                # Clients send the response back in the next turn, and the API rejects
                # empty text blocks in requests: one such block would break the
                # conversation.
                require(
                    require_string(block.get("text"), f"{location}.text"),
                    f"{location}: an empty text",
                )
                if block.get("citations") is not None:
                    citations = require_objects(block["citations"], f"{location}.citations")
                    for citation in citations:
                        _check_citation(citation, f"{location}.citations")
            case "thinking":
                require_string(block.get("thinking"), f"{location}.thinking")
                # Requests require it, too: without a signature a client cannot send the
                # thinking back.
                require_string(block.get("signature"), f"{location}.signature")
            case "redacted_thinking":
                require_string(block.get("data"), f"{location}.data")
            case "mcp_tool_result":
                _check_mcp_block(block, location)
            case kind if kind in ERROR_CODES:
                _check_hosted_result(block, location)
            case "tool_use" | "mcp_tool_use" | "server_tool_use" as kind:
                if kind == "mcp_tool_use":
                    _check_mcp_block(block, location)
                for key in ("id", "name"):
                    require(
                        require_string(block.get(key), f"{location}.{key}"),
                        f"{location}: {key} is empty",
                    )
                require_object(block.get("input"), f"{location}.input")
            case kind:
                raise Violation(f"{location} is of type {kind!r}")
    _check_end(message, "message")
    _check_pairs(content, is_complete=message["stop_reason"] in ("end_turn", "tool_use"))
    has_tool_use = any(block["type"] == "tool_use" for block in content)
    require(
        message["stop_reason"] != "tool_use" or has_tool_use,
        "stop_reason is tool_use without a tool_use block",
    )


def _check_mcp_block(block: JsonObject, location: str) -> None:
    key = "server_name" if block["type"] == "mcp_tool_use" else "tool_use_id"
    require(require_string(block.get(key), f"{location}.{key}"), f"{location}: {key} is empty")
    if block["type"] == "mcp_tool_result":
        require(isinstance(block.get("is_error"), bool), f"{location} has no is_error")
        for part in require_objects(block.get("content"), f"{location}.content"):
            require_string(part.get("text"), f"{location}.content.text")


def _check_citation(value: object, location: str) -> None:
    """Check a citation. What else it has depends on its type."""
    citation = require_object(value, location)
    for key in ("type", "cited_text"):
        require_string(citation.get(key), f"{location}.{key}")
    if citation["type"] == "web_search_result_location":
        for key in ("url", "encrypted_index"):
            require_string(citation.get(key), f"{location}.{key}")


def _check_hosted_result(block: JsonObject, location: str) -> None:
    kind = block["type"]
    if kind == "web_search_tool_result" and not isinstance(block.get("content"), dict):
        for result in require_objects(block.get("content"), f"{location}.content"):
            is_result = result.get("type") == "web_search_result"
            require(is_result, f"{location}: a result of type {result.get('type')!r}")
            for key in ("url", "title", "encrypted_content"):
                require_string(result.get(key), f"{location}.content.{key}")
        return
    content = require_object(block.get("content"), f"{location}.content")
    if content.get("type") == "code_execution_result" and kind == "code_execution_tool_result":
        for key in ("stdout", "stderr"):
            require_string(content.get(key), f"{location}.content.{key}")
        is_code = type(content.get("return_code")) is int
        require(is_code, f"{location}: return_code is {content.get('return_code')!r}")
        require_objects(content.get("content"), f"{location}.content.content")
        return
    require(content.get("type") == f"{kind}_error", f"{location}: {content.get('type')!r}")
    code = content.get("error_code")
    require(code in ERROR_CODES[kind], f"{location}: error_code is {code!r}")


def _check_pairs(blocks: Sequence[JsonObject], *, is_complete: bool) -> None:
    """Check that each result of a hosted tool follows its call, and each call has one if
    the answer is complete.
    """
    calls: set[str] = set()
    for block in blocks:
        if block["type"] == "server_tool_use":
            calls.add(block["id"])
        elif block["type"] in ERROR_CODES:
            id = require_string(block.get("tool_use_id"), "tool_use_id")
            require(id in calls, f"a {block['type']} of {id!r}, which is no open call")
            calls.remove(id)
    require(not calls or not is_complete, f"server_tool_use {sorted(calls)} without a result")


def check_error(body: JsonObject) -> None:
    """Check an error envelope, in a body or an event. Raises Violation."""
    require(body.get("type") == "error", f"type is {body.get('type')!r}")
    error = require_object(body.get("error"), "error")
    require(error.get("type") in ERROR_TYPES, f"error.type is {error.get('type')!r}")
    require(require_string(error.get("message"), "error.message"), "error.message is empty")
    if "request_id" in body:
        require_string(body["request_id"], "request_id")


def _check_message_fields(message: JsonObject) -> None:
    require(message.get("type") == "message", f"type is {message.get('type')!r}")
    require(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    require(require_string(message.get("id"), "id"), "id is empty")
    require_string(message.get("model"), "model")
    _check_usage(message.get("usage"), ("input_tokens", "output_tokens"))


def _check_end(end: JsonObject, location: str) -> None:
    for key in ("stop_reason", "stop_sequence"):
        require_key(end, key, location)
    require(end["stop_reason"] in STOP_REASONS, f"stop_reason is {end['stop_reason']!r}")
    has_stop_sequence = end["stop_sequence"] is not None
    require(
        has_stop_sequence == (end["stop_reason"] == "stop_sequence"),
        "stop_sequence and stop_reason contradict each other",
    )


def _check_usage(value: object, required: tuple[str, ...]) -> None:
    usage = require_object(value, "usage")
    for key in USAGE_COUNTS:
        if key in required or usage.get(key) is not None:
            require_count(usage.get(key), f"usage.{key}")
    if (tool_use := usage.get("server_tool_use")) is not None:
        counts = require_object(tool_use, "usage.server_tool_use")
        for key in ("web_search_requests", "web_fetch_requests"):
            require_count(counts.get(key), f"usage.server_tool_use.{key}")
    details = usage.get("output_tokens_details")
    if details is not None:
        thinking_tokens = require_count(
            require_object(details, "output_tokens_details").get("thinking_tokens"),
            "thinking_tokens",
        )
        # Thinking is part of output_tokens, not in addition to it.
        require(
            thinking_tokens <= usage["output_tokens"], "more thinking_tokens than output_tokens"
        )
