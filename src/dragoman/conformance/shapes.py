"""Shapes that several dialects share: usage, token logprobs, errors. For answers of any server."""

from __future__ import annotations

from .violation import Json, a_count, a_key, a_text, an_array, an_object, must, objects


def usage(value: object, at: str = "usage") -> None:
    counts = an_object(value, at)
    prompt, completion, total = (
        a_count(counts.get(key), f"{at}.{key}") for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    must(total == prompt + completion, f"{at}.total_tokens is {total}, expected {prompt + completion}")
    details = an_object(counts.get("prompt_tokens_details") or {}, f"{at}.prompt_tokens_details")
    cached = a_count(details.get("cached_tokens") or 0, f"{at}.prompt_tokens_details.cached_tokens")
    must(cached <= prompt, f"{at}: more cached tokens than prompt tokens")


def chat_logprobs(value: object, at: str) -> None:
    """`logprobs` of a chat choice, streamed or whole."""
    if value is None:
        return
    logprobs = an_object(value, at)
    for name in ("content", "refusal"):
        for i, entry in enumerate(objects(logprobs.get(name) or [], f"{at}.{name}")):
            _scored(entry, f"{at}.{name}[{i}]")
            for other in objects(entry.get("top_logprobs"), f"{at}.{name}[{i}].top_logprobs"):
                _scored(other, f"{at}.{name}[{i}].top_logprobs")


def _scored(entry: Json, at: str) -> None:
    a_text(entry.get("token"), f"{at}.token")
    must(isinstance(entry.get("logprob"), int | float) and entry["logprob"] <= 0, f"{at}.logprob is no logprob")
    a_key(entry, "bytes", at)
    if entry["bytes"] is not None:
        must(all(0 <= a_count(byte, at) < 256 for byte in an_array(entry["bytes"], at)), f"{at}.bytes are no bytes")


def error(value: object) -> None:
    body = an_object(value, "error")
    for key in ("message", "type", "param", "code"):
        a_key(body, key, "error")
    must(a_text(body["message"], "error.message") != "", "error.message is empty")
    a_text(body["type"], "error.type")
