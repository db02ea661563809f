"""The wire format of Gemini's generateContent and streamGenerateContent: checks of
streams and objects of any server.

    stream:  chunk*  last; each chunk has new parts of candidates; the last has the
             finish reason of every candidate, and the usage

A stream is server-sent events without names or comments, or one JSON array. A function
call is never split over chunks. An error ends the stream.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

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

REASONS = ("STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "OTHER")
STATUSES = (
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "ABORTED",
    "RESOURCE_EXHAUSTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
)
COUNTS = (
    "promptTokenCount",
    "candidatesTokenCount",
    "totalTokenCount",
    "cachedContentTokenCount",
    "thoughtsTokenCount",
)


def check_stream(data: bytes, *, allow_variants: bool = False) -> list[JsonObject]:
    """Check a stream of events, and return its chunks; an empty list if it ends with an
    error. Raises Violation.

    allow_variants: usage and finish reasons may also be in earlier chunks, as Google
        sends them.
    """
    text = data.decode()
    require(not text or text.endswith("\n\n"), "the stream ends inside an event")
    chunks = list[JsonObject]()
    for event in text.split("\n\n"):
        # Blank lines keep an idle stream alive.
        line = event.strip("\n")
        if line:
            require(len(line.splitlines()) == 1, f"an event of several lines: {line[:40]!r}")
            # Google's SDK parses every other line, comments too, as a JSON object.
            require(line.startswith("data: "), f"a line that is no data: {line[:40]!r}")
            chunks.append(parse_object(line.removeprefix("data: "), "the data"))
    return _check_chunks(chunks, allow_variants)


def check_array(data: bytes, *, allow_variants: bool = False) -> list[JsonObject]:
    """Check a stream that is a JSON array. Returns and raises as `check_stream`."""
    return _check_chunks(require_objects(json.loads(data), "the stream"), allow_variants)


def check_object(answer: JsonObject) -> None:
    """Check a full response. Raises Violation."""
    _check_chunk(answer)
    _check_last(answer)


def check_error(body: JsonObject) -> None:
    """Check an error body. Raises Violation."""
    error = require_object(body.get("error"), "error")
    code = require_count(error.get("code"), "code")
    require(400 <= code < 600, f"the code is {code}")
    require(require_string(error.get("message"), "message") != "", "message is empty")
    require(error.get("status") in STATUSES, f"the status is {error.get('status')!r}")
    for detail in require_objects(error.get("details", []), "details"):
        require_string(detail.get("@type"), "@type")


def fold_chunks(chunks: list[JsonObject]) -> JsonObject:
    """Combine the chunks of a stream, or a full response alone, into one response.

    Adjacent texts of the same kind are joined, and an empty one is left out.
    """
    folded: dict[int, JsonObject] = {}
    for chunk in chunks:
        for candidate in chunk["candidates"]:
            target = folded.setdefault(candidate["index"], {"parts": []})
            for part in candidate["content"]["parts"]:
                _add_part(target["parts"], part)
            result = candidate.get("logprobsResult")
            if result is not None:
                sums = target.setdefault(
                    "logprobsResult", {"chosenCandidates": [], "topCandidates": []}
                )
                for name in sums:
                    sums[name] += result[name]
            for name in ("finishReason", "avgLogprobs"):
                if name in candidate:
                    target[name] = candidate[name]
    rest = {name: value for name, value in chunks[-1].items() if name != "candidates"}
    return {"candidates": folded, **rest}


def _add_part(parts: list[JsonObject], part: JsonObject) -> None:
    last: Any = parts[-1] if parts else {}
    if part.get("text") == "" and "thoughtSignature" not in part:
        return
    is_continued = (
        "text" in part
        and "text" in last
        and part.get("thought") == last.get("thought")
        and "thoughtSignature" not in part
    )
    if is_continued:
        parts[-1] = {**last, "text": last["text"] + part["text"]}
    else:
        parts.append(part)


def _check_chunks(chunks: list[JsonObject], allow_variants: bool) -> list[JsonObject]:
    has_failed = False
    for chunk in chunks:
        require(not has_failed, "a chunk follows an error")
        has_failed = "error" in chunk
        if has_failed:
            check_error(chunk)
            continue
        _check_chunk(chunk)
        for name in ("modelVersion", "responseId"):
            require(chunk[name] == chunks[0][name], f"{name} changes")
    if has_failed:
        return []
    require(chunks, "the stream is empty")
    for chunk in () if allow_variants else chunks[:-1]:
        require("usageMetadata" not in chunk, "the usage before the last chunk")
        early = [one for one in chunk["candidates"] if "finishReason" in one]
        require(not early, "a finish reason before the last chunk")
    _check_last(chunks[-1])
    return chunks


def _check_last(chunk: JsonObject) -> None:
    require("usageMetadata" in chunk, "no usage at the end")
    for candidate in chunk["candidates"]:
        reason = candidate.get("finishReason")
        require(reason in REASONS, f"finishReason is {reason!r}")


def _check_chunk(chunk: JsonObject) -> None:
    for name in ("modelVersion", "responseId"):
        require(require_string(chunk.get(name), name) != "", f"{name} is empty")
    candidates = require_objects(chunk.get("candidates"), "candidates")
    # The SDK's chats drop an answer with a chunk that has no candidate or no part.
    require(candidates, "a chunk has no candidates")
    for candidate in candidates:
        require_count(candidate.get("index"), "index")
        content = require_object(candidate.get("content"), "content")
        require(content.get("role") == "model", f"the role is {content.get('role')!r}")
        parts = require_objects(content.get("parts"), "parts")
        require(parts, "a content has no parts")
        for part in parts:
            _check_part(part)
        if "logprobsResult" in candidate:
            _check_logprobs(require_object(candidate["logprobsResult"], "logprobsResult"))
    usage = require_object(chunk.get("usageMetadata", {}), "usageMetadata")
    for name in COUNTS:
        require_count(usage.get(name, 0), name)
    if all(name in usage for name in COUNTS[:3]):
        parts = (*COUNTS[:2], "thoughtsTokenCount")
        total = sum(usage.get(name, 0) for name in parts)
        require(usage["totalTokenCount"] == total, "the total is not the sum of its counts")


def _check_part(part: JsonObject) -> None:
    kinds = [name for name in ("text", "functionCall") if name in part]
    require(len(kinds) == 1, f"a part has {kinds or 'no content'}")
    if "text" in part:
        require_string(part["text"], "text")
    else:
        call = require_object(part["functionCall"], "functionCall")
        require(require_string(call.get("name"), "name") != "", "a call has no name")
        require_object(call.get("args", {}), "args")
    signature = part.get("thoughtSignature")
    if signature is not None:
        try:
            base64.b64decode(require_string(signature, "thoughtSignature"), validate=True)
        except binascii.Error:
            require(False, "thoughtSignature is not Base64")


def _check_logprobs(result: JsonObject) -> None:
    chosen = require_objects(result.get("chosenCandidates"), "chosenCandidates")
    tops = require_array(result.get("topCandidates"), "topCandidates")
    require(len(chosen) == len(tops), "topCandidates and chosenCandidates differ in length")
    for entry in chosen:
        require_string(entry.get("token"), "token")
