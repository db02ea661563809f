"""Checks of shapes that several dialects share: usage, token logprobs, errors."""

from __future__ import annotations

from .checks import (
    Json,
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
    require(total == prompt + completion, f"{location}.total_tokens is {total}, expected {prompt + completion}")
    details = require_object(counts.get("prompt_tokens_details") or {}, f"{location}.prompt_tokens_details")
    cached = require_count(details.get("cached_tokens") or 0, f"{location}.prompt_tokens_details.cached_tokens")
    # Cached tokens are part of prompt_tokens; billing subtracts them, which would become negative.
    require(cached <= prompt, f"{location}: more cached tokens than prompt tokens")


def check_chat_logprobs(value: object, location: str) -> None:
    """Check the `logprobs` of a chat choice, streamed or full."""
    if value is None:
        return
    logprobs = require_object(value, location)
    for name in ("content", "refusal"):
        for i, entry in enumerate(require_objects(logprobs.get(name) or [], f"{location}.{name}")):
            _check_logprob(entry, f"{location}.{name}[{i}]")
            for other in require_objects(entry.get("top_logprobs"), f"{location}.{name}[{i}].top_logprobs"):
                _check_logprob(other, f"{location}.{name}[{i}].top_logprobs")


def _check_logprob(entry: Json, location: str) -> None:
    require_string(entry.get("token"), f"{location}.token")
    require(
        isinstance(entry.get("logprob"), int | float) and entry["logprob"] <= 0, f"{location}.logprob is no logprob"
    )
    require_key(entry, "bytes", location)
    if entry["bytes"] is not None:
        require(
            all(0 <= require_count(byte, location) < 256 for byte in require_array(entry["bytes"], location)),
            f"{location}.bytes are no bytes",
        )


def check_error(value: object) -> None:
    body = require_object(value, "error")
    for key in ("message", "type", "param", "code"):
        require_key(body, key, "error")
    require(require_string(body["message"], "error.message") != "", "error.message is empty")
    require_string(body["type"], "error.type")
