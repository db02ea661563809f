"""Checks of values that several OpenAI dialects share: usage, token logprobs,
errors.
"""

from __future__ import annotations

from .json_values import (
    JsonObject,
    require,
    require_array,
    require_count,
    require_key,
    require_object,
    require_objects,
    require_string,
)


def check_usage(value: object, location: str = "usage") -> None:
    counts = require_object(value, location)
    prompt, completion, total = (
        require_count(counts.get(key), f"{location}.{key}")
        for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    require(
        total == prompt + completion,
        f"{location}.total_tokens is {total}, expected {prompt + completion}",
    )
    details = require_object(
        counts.get("prompt_tokens_details") or {}, f"{location}.prompt_tokens_details"
    )
    cached = require_count(
        details.get("cached_tokens") or 0, f"{location}.prompt_tokens_details.cached_tokens"
    )
    # prompt_tokens includes the cached tokens; billing subtracts them, and the
    # difference must not be negative.
    require(cached <= prompt, f"{location}: more cached tokens than prompt tokens")


def check_chat_logprobs(value: object, location: str) -> None:
    """Check the `logprobs` of a chat choice, streamed or full."""
    if value is None:
        return
    logprobs = require_object(value, location)
    for name in ("content", "refusal"):
        for i, entry in enumerate(require_objects(logprobs.get(name) or [], f"{location}.{name}")):
            _check_logprob(entry, f"{location}.{name}[{i}]")
            for other in require_objects(
                entry.get("top_logprobs"), f"{location}.{name}[{i}].top_logprobs"
            ):
                _check_logprob(other, f"{location}.{name}[{i}].top_logprobs")


def _check_logprob(entry: JsonObject, location: str) -> None:
    require_string(entry.get("token"), f"{location}.token")
    logprob = entry.get("logprob")
    require(
        isinstance(logprob, int | float) and logprob <= 0,
        f"{location}.logprob is not a logprob: {logprob!r}",
    )
    require_key(entry, "bytes", location)
    if entry["bytes"] is not None:
        byte_values = [
            require_count(byte, location) for byte in require_array(entry["bytes"], location)
        ]
        require(all(byte < 256 for byte in byte_values), f"{location}.bytes has a value above 255")


def check_error(value: object) -> None:
    body = require_object(value, "error")
    for key in ("message", "type", "param", "code"):
        require_key(body, key, "error")
    require(require_string(body["message"], "error.message") != "", "error.message is empty")
    require_string(body["type"], "error.type")
