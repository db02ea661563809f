"""The wire format of Ollama's /api/chat and /api/generate: checks of streams and
objects of any server.

    stream:  chunk*  final; one JSON object per line; `done` is true only in the final
             chunk, which has the counts

A chunk of /api/chat has a `message`, one of /api/generate a `response`. A tool call is
never split over chunks. An error is a line that ends the stream. Blanks may precede the
object of a line.
"""

from __future__ import annotations

import re

from .event_streams import parse_object
from .json_values import (
    JsonObject,
    require,
    require_array,
    require_count,
    require_object,
    require_objects,
    require_string,
)

REASONS = ("stop", "length", "load", "unload")
COUNTS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
"""An RFC 3339 timestamp with up to nanoseconds, as Go formats it."""


def check_stream(data: bytes, *, is_chat: bool) -> list[JsonObject]:
    """Check a stream, and return its chunks; an empty list if it ends with an error.
    Raises Violation.
    """
    chunks = list[JsonObject]()
    n_calls = 0
    has_failed = False
    text = data.decode()
    # Clients split the stream at newlines: an unfinished line would stay in their
    # buffer.
    require(not text or text.endswith("\n"), "the stream ends inside a line")
    for line in text.split("\n")[:-1]:
        # Some clients split lines at other characters than \n, too; str.splitlines
        # covers all of them.
        require(len(line.splitlines()) == 1, f"an empty line, or several in one: {line[:40]!r}")
        chunk = parse_object(line, "the line")
        require(not has_failed, "a line follows an error")
        # After the status 200 an error can only be the last line of the stream.
        has_failed = "error" in chunk
        if has_failed:
            check_error(chunk)
            continue
        require(not chunks or not chunks[-1]["done"], "a line follows the final one")
        _check_chunk(chunk, is_chat)
        require(not chunks or chunk["model"] == chunks[0]["model"], "the model changes")
        n_calls = _check_calls(chunk, is_chat, n_calls)
        # Only the last chunk has counts and durations; any other must have content.
        part = _get_part(chunk, is_chat)
        text_field = "content" if is_chat else "response"
        has_content = (
            any(part.get(name) for name in (text_field, "thinking", "tool_calls"))
            or "logprobs" in chunk
        )
        require(chunk["done"] or has_content, "a chunk has no content")
        chunks.append(chunk)
    if has_failed:
        return []
    require(chunks and chunks[-1]["done"], "the stream ends without a chunk whose `done` is true")
    return chunks


def check_object(answer: JsonObject, *, is_chat: bool) -> None:
    """Check a full response, or the response to a request that loads or unloads a
    model. Raises Violation.
    """
    _check_chunk(answer, is_chat)
    require(answer["done"], "done is false")
    _check_calls(answer, is_chat, 0)


def check_error(body: JsonObject) -> None:
    """Check an error body. Raises Violation."""
    require(require_string(body.get("error"), "error") != "", "error is empty")


def fold_chunks(chunks: list[JsonObject], *, is_chat: bool) -> JsonObject:
    """Combine the chunks of a stream into a full response, as a client does."""
    parts = [chunk["message"] if is_chat else chunk for chunk in chunks]
    texts = {
        name: "".join(part.get(name, "") for part in parts)
        for name in ("content" if is_chat else "response", "thinking")
    }
    folded: JsonObject = {name: text for name, text in texts.items() if text or name != "thinking"}
    calls = [call for part in parts for call in part.get("tool_calls", ())]
    if calls:
        folded["tool_calls"] = calls
    logprobs = [entry for chunk in chunks for entry in chunk.get("logprobs", ())]
    answer = {**chunks[-1], **({"message": {"role": "assistant", **folded}} if is_chat else folded)}
    return {**answer, "logprobs": logprobs} if logprobs else answer


def _check_chunk(chunk: JsonObject, is_chat: bool) -> None:
    require(require_string(chunk.get("model"), "model") != "", "model is empty")
    time = require_string(chunk.get("created_at"), "created_at")
    require(_TIME.fullmatch(time), f"created_at is {time!r}")
    require(isinstance(chunk.get("done"), bool), f"done is {chunk.get('done')!r}")
    part = _get_part(chunk, is_chat)
    if is_chat:
        require(part.get("role") == "assistant", f"the role is {part.get('role')!r}")
    require_string(part.get("content" if is_chat else "response"), "the text")
    if "thinking" in part:
        require(require_string(part["thinking"], "thinking") != "", "thinking is empty")
    for entry in require_objects(chunk.get("logprobs", []), "logprobs"):
        _check_logprob(entry)
        for alternative in require_objects(entry.get("top_logprobs", []), "top_logprobs"):
            _check_logprob(alternative)
    if not chunk["done"]:
        early = [name for name in ("done_reason", "context", *COUNTS) if name in chunk]
        require(not early, f"{early} before the final chunk")
        return
    reason = chunk.get("done_reason")
    require(reason in REASONS, f"done_reason is {reason!r}")
    if reason in ("stop", "length"):
        for name in COUNTS:
            # Ollama omits counts that are zero.
            require_count(chunk.get(name, 0), name)
    for id in require_array(chunk.get("context", []), "context"):
        require_count(id, "context")


def _check_calls(chunk: JsonObject, is_chat: bool, n_calls: int) -> int:
    """Check the calls of a chunk, and return the number of calls so far. n_calls:
    number of calls before it.
    """
    for call in require_objects(_get_part(chunk, is_chat).get("tool_calls", []), "tool_calls"):
        function = require_object(call.get("function"), "function")
        require(
            require_string(function.get("name"), "the name of a function") != "",
            "a function has no name",
        )
        require_object(function.get("arguments"), "arguments")
        require(
            function.get("index", n_calls) == n_calls,
            f"index is {function.get('index')!r}, expected {n_calls}",
        )
        n_calls += 1
    return n_calls


def _get_part(chunk: JsonObject, is_chat: bool) -> JsonObject:
    return require_object(chunk.get("message"), "message") if is_chat else chunk


def _check_logprob(entry: JsonObject) -> None:
    require_string(entry.get("token"), "token")
    logprob = entry.get("logprob")
    require(isinstance(logprob, int | float) and logprob <= 0, f"logprob is {logprob!r}")
    for byte in require_array(entry.get("bytes", []), "bytes"):
        require(isinstance(byte, int) and 0 <= byte < 256, f"{byte!r} is not a byte")
