"""The response of each API in one common form, read from a non-streamed response or
accumulated from a stream.

The `fold` functions accumulate a stream as the official clients do. They are lenient:
`rules` checks the format of streams.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from .json_objects import get_object, get_objects
from .rules.json_values import JsonObject, Violation, require
from .sse import parse_chunks, parse_json_object, parse_lines, parse_sse

REASONS = {
    "stop": "stop", "length": "length", "tool_calls": "calls", "function_call": "calls",
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "calls",
    "model_context_window_exceeded": "length",
    "completed": "stop", "max_output_tokens": "length",
}  # fmt: skip
"""An API's finish reason -> the common one of `ParsedResponse.reason`; others stay as
they are.
"""


@dataclass(slots=True)
class ParsedResponse:
    """A response as a client reads it, streamed or not.

    calls: name and arguments (JSON text) of each tool call.
    reason: `stop`, `length`, `calls`, or another finish reason of the API; None if
        there is none.
    prompt_tokens, output_tokens: counts of the usage; None if there is none.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


def _normalize(reason: object) -> str | None:
    return None if reason is None else REASONS.get(str(reason), str(reason))


def read_chat(reply: JsonObject, index: int = 0) -> ParsedResponse:
    choice = reply["choices"][index]
    message = choice["message"]
    usage = get_object(reply, "usage")
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in get_objects(message, "tool_calls")
    ]
    return ParsedResponse(
        message.get("content") or "",
        message.get("reasoning_content") or message.get("reasoning") or "",
        calls,
        _normalize(choice["finish_reason"]),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
    )


def fold_chat(data: bytes, index: int = 0) -> ParsedResponse:
    """Accumulate one choice of a stream as openai-python does: deltas of a call belong
    together by their index.
    """
    answer = ParsedResponse()
    calls = dict[int, list[str]]()
    for chunk in parse_chunks(data):
        _raise_error(chunk)
        _read_usage(answer, chunk.get("usage"), "prompt_tokens", "completion_tokens")
        for choice in get_objects(chunk, "choices"):
            # Some servers omit the index if there is only one choice.
            if choice.get("index", 0) != index:
                continue
            delta = get_object(choice, "delta")
            answer.text += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for call in get_objects(delta, "tool_calls"):
                function = get_object(call, "function")
                name_and_arguments = calls.setdefault(call["index"], ["", ""])
                # Appended as in the SDK: a name that is sent twice becomes a doubled
                # name.
                name_and_arguments[0] += function.get("name") or ""
                name_and_arguments[1] += function.get("arguments") or ""
            answer.reason = _normalize(choice.get("finish_reason")) or answer.reason
    answer.calls = [(name, arguments) for name, arguments in calls.values()]
    return answer


def read_completion(reply: JsonObject) -> ParsedResponse:
    choice = reply["choices"][0]
    usage = get_object(reply, "usage")
    counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return ParsedResponse(choice["text"], "", [], _normalize(choice["finish_reason"]), *counts)


def fold_completion(data: bytes) -> ParsedResponse:
    answer = ParsedResponse()
    for chunk in parse_chunks(data):
        _raise_error(chunk)
        _read_usage(answer, chunk.get("usage"), "prompt_tokens", "completion_tokens")
        for choice in get_objects(chunk, "choices"):
            if choice.get("index", 0) == 0:
                answer.text += choice.get("text") or ""
                answer.reason = _normalize(choice.get("finish_reason")) or answer.reason
    return answer


def read_response(reply: JsonObject) -> ParsedResponse:
    require(reply.get("status") != "failed", f"the response failed: {reply.get('error')}")
    answer = ParsedResponse(
        reason=_normalize(get_object(reply, "incomplete_details").get("reason") or reply["status"])
    )
    for item in reply["output"]:
        match item["type"]:
            case "message":
                answer.text += "".join(part.get("text", "") for part in item["content"])
            case "reasoning":
                parts = [*(get_objects(item, "summary")), *(get_objects(item, "content"))]
                answer.reasoning += "".join(part.get("text", "") for part in parts)
            case "function_call":
                answer.calls.append((item["name"], item["arguments"]))
            case _:
                pass
    _read_usage(answer, reply.get("usage"), "input_tokens", "output_tokens")
    return answer


def fold_response(data: bytes) -> ParsedResponse:
    """Accumulate the deltas of a stream; usage and status come from the terminal event.
    Raises Violation.
    """
    answer = ParsedResponse()
    names = dict[int, str]()
    arguments = dict[int, str]()
    for event in parse_chunks(data):
        kind = event.get("type")
        match kind:
            # Only this event has the call's name; its deltas refer to it by
            # `output_index`.
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                names[event["output_index"]] = event["item"]["name"]
            case "response.output_text.delta":
                answer.text += event["delta"]
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                answer.reasoning += event["delta"]
            case "response.function_call_arguments.delta":
                index = event["output_index"]
                arguments[index] = arguments.get(index, "") + event["delta"]
            case "response.completed" | "response.incomplete" | "response.failed":
                last = read_response(event["response"])
                answer.reason = last.reason
                answer.prompt_tokens = last.prompt_tokens
                answer.output_tokens = last.output_tokens
            case "error":
                raise Violation(f"the stream fails: {event}")
            case _:
                pass
    answer.calls = [(name, arguments.get(index, "")) for index, name in names.items()]
    return answer


def read_message(reply: JsonObject) -> ParsedResponse:
    answer = ParsedResponse(reason=_normalize(reply["stop_reason"]))
    for block in reply["content"]:
        match block["type"]:
            case "text":
                answer.text += block["text"]
            case "thinking":
                answer.reasoning += block["thinking"]
            case "tool_use":
                answer.calls.append((block["name"], json.dumps(block["input"])))
            case _:
                pass
    _read_message_usage(answer, reply.get("usage"))
    return answer


def fold_message(data: bytes) -> ParsedResponse:
    """Accumulate a stream as anthropic-python does, which drops events without a name.
    Raises Violation.
    """
    answer = ParsedResponse()
    calls = dict[int, list[str]]()
    for named in parse_sse(data):
        if named.name is None:
            continue
        event = parse_json_object(named.data)
        match event.get("type"):
            case "message_start":
                _read_message_usage(answer, event["message"].get("usage"))
            case "content_block_start" if event["content_block"]["type"] == "tool_use":
                calls[event["index"]] = [event["content_block"]["name"], ""]
            case "content_block_delta":
                delta = event["delta"]
                answer.text += delta.get("text", "")
                answer.reasoning += delta.get("thinking", "")
                if delta.get("type") == "input_json_delta":
                    calls[event["index"]][1] += delta["partial_json"]
            case "message_delta":
                answer.reason = _normalize(event["delta"].get("stop_reason"))
                _read_message_usage(answer, event.get("usage"))
            case "error":
                raise Violation(f"the stream fails: {event.get('error')}")
            case _:
                pass
    answer.calls = [(name, _parse_input(text, answer.reason)) for name, text in calls.values()]
    return answer


def _parse_input(text: str, reason: str | None) -> str:
    """Return the input of a call as one JSON text; that of a call that the limit has
    truncated as it is.
    """
    try:
        return json.dumps(json.loads(text or "{}"))
    except ValueError as error:
        require(reason == "length", f"the input of a call is not JSON: {error}: {text!r}")
        return text


def read_ollama(reply: JsonObject) -> ParsedResponse:
    message = get_object(reply, "message")
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"]))
        for call in get_objects(message, "tool_calls")
    ]
    return ParsedResponse(
        message.get("content", "") if "message" in reply else reply.get("response", ""),
        message.get("thinking") or reply.get("thinking") or "",
        calls,
        _normalize(reply.get("done_reason")),
        reply.get("prompt_eval_count"),
        reply.get("eval_count"),
    )


def fold_ollama(data: bytes) -> ParsedResponse:
    answer = ParsedResponse()
    for line in parse_lines(data):
        _raise_error(line)
        piece = read_ollama(line)
        answer.text += piece.text
        answer.reasoning += piece.reasoning
        answer.calls += piece.calls
        answer.reason = piece.reason or answer.reason
        answer.prompt_tokens = (
            piece.prompt_tokens if piece.prompt_tokens is not None else answer.prompt_tokens
        )
        answer.output_tokens = (
            piece.output_tokens if piece.output_tokens is not None else answer.output_tokens
        )
    return answer


def _raise_error(event: JsonObject) -> None:
    require(not event.get("error"), f"the stream fails: {event.get('error')}")


def _read_usage(answer: ParsedResponse, usage: JsonObject | None, prompt: str, output: str) -> None:
    if usage:
        answer.prompt_tokens = usage.get(prompt)
        answer.output_tokens = usage.get(output)


def _read_message_usage(answer: ParsedResponse, usage: JsonObject | None) -> None:
    """Set the token counts. Anthropic's input_tokens excludes tokens read from the
    cache or written to it.
    """
    if not usage:
        return
    if usage.get("input_tokens") is not None:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        answer.prompt_tokens = sum(usage.get(name) or 0 for name in names)
    answer.output_tokens = usage.get("output_tokens", answer.output_tokens)
