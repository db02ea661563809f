"""Common parts of the wire format checks: `Violation`, checks of JSON values, and
parsers of streams.

The values are those that several dialects have: usage, token logprobs, errors. The
streams are server-sent events, either unnamed, as in OpenAI's older APIs, or named.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, cast

Json = dict[str, Any]


class Violation(AssertionError):
    """A rule is violated. The message states the rule and the offending value."""


# Checks of JSON values. Each raises Violation; `location` is the path of the value in
# the message.


def require(condition: object, rule: str) -> None:
    if not condition:
        raise Violation(rule)


def require_object(value: object, location: str) -> Json:
    require(isinstance(value, dict), f"{location} is {_shorten(value)}, expected an object")
    return cast(Json, value)


def require_objects(value: object, location: str) -> list[Json]:
    return [
        require_object(item, f"{location}[{i}]")
        for i, item in enumerate(require_array(value, location))
    ]


def require_array(value: object, location: str) -> list[Any]:
    require(isinstance(value, list), f"{location} is {_shorten(value)}, expected an array")
    return cast(list[Any], value)


def require_string(value: object, location: str) -> str:
    require(isinstance(value, str), f"{location} is {_shorten(value)}, expected a string")
    return cast(str, value)


def require_count(value: object, location: str) -> int:
    # Python's bool is a subclass of int.
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(is_count, f"{location} is {_shorten(value)}, expected a count")
    return cast(int, value)


def require_key(value: Json, key: str, location: str) -> None:
    require(key in value, f"{location} has no {key}")


def _shorten(value: object) -> str:
    return repr(value)[:80]


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


def _check_logprob(entry: Json, location: str) -> None:
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


# Parsers of streams.

DONE = "[DONE]"


class ParsedStream:
    """A parsed stream of unnamed events. Raises Violation if its framing is invalid.

    payloads: the JSON objects of the events.
    done: the stream ended with [DONE], after which nothing may follow.
    """

    def __init__(self, data: bytes) -> None:
        self.payloads: list[Json] = []
        self.done = False
        for block in map(_parse_data, _split_events(data)):
            require(not self.done, f"an event after {DONE}")
            if block == DONE:
                self.done = True
            else:
                self.payloads.append(parse_object(block, "the payload"))


def parse_named_events(data: bytes) -> Iterator[Json]:
    """Parse the payloads of named events, each of which repeats the event's name as
    `type`. Raises Violation.
    """
    for block in _split_events(data):
        name, newline, data_line = block.partition("\n")
        require(newline and name.startswith("event: "), f"an event without a name: {block[:40]!r}")
        payload = parse_object(_parse_data(data_line), "the payload")
        event_name = name.removeprefix("event: ")
        require(
            payload.get("type") == event_name,
            f"an event named {event_name} says that it is {payload.get('type')!r}",
        )
        yield payload


def _split_events(data: bytes) -> Iterator[str]:
    """Split a stream into events. Comments, which serve as keepalives, are skipped."""
    text = data.decode()
    require(not text or text.endswith("\n\n"), "the stream ends inside an event")
    # Drop the last piece, the empty string after the final blank line.
    return (block for block in text.split("\n\n")[:-1] if not block.startswith(":"))


def _parse_data(block: str) -> str:
    require(block.startswith("data: "), f"not a data event: {block[:40]!r}")
    # Some clients split lines at other characters than \n, too; str.splitlines covers
    # all of them.
    require(len(block.splitlines()) == 1, f"one event in several lines: {block[:40]!r}")
    return block.removeprefix("data: ")


def parse_object(text: str, location: str) -> Json:
    """Parse a JSON object. Raises Violation."""
    try:
        return require_object(json.loads(text, parse_constant=_reject_constant), location)
    # RecursionError: the JSON nests too deeply.
    except (ValueError, RecursionError) as error:
        raise Violation(f"{location} is not JSON: {error}: {text[:40]!r}") from None


def _reject_constant(name: str) -> float:
    raise Violation(f"{name} is not JSON")


CONSTANT_FIELDS = ("id", "created", "model")
"""Fields with the same value in all chunks of a stream."""


class ChunkState(ABC):
    """State machine that checks a stream of Chat Completions or Completions: chunks,
    usage, an error or `[DONE]`.

    kind: the `object` of its chunks.
    reasons: the allowed finish reasons.
    include_usage, allow_variants: see `chat.check_stream`.
    """

    kind: str

    def __init__(
        self, include_usage: bool, reasons: tuple[str, ...], *, allow_variants: bool = False
    ) -> None:
        self._include_usage = include_usage
        self._reasons = reasons
        self._allow_variants = allow_variants
        self._fingerprint: object = None
        self._first: Json | None = None
        self._has_usage = self._has_failed = False

    def check(self, data: bytes) -> list[Json]:
        """Check a whole stream, and return its chunks. Raises Violation."""
        stream = ParsedStream(data)
        for chunk in stream.payloads:
            require(not self._has_failed, "a chunk after an error")
            # Clients that requested usage stop reading at the usage chunk.
            require(not self._has_usage, "a chunk after the one with usage")
            if "error" in chunk:
                check_error(chunk["error"])
                self._has_failed = True
                continue
            require(chunk.get("object") == self.kind, f"object is {chunk.get('object')!r}")
            require_count(chunk.get("created"), "created")
            require_string(chunk.get("id"), "id")
            # Clients group chunks by `id`, and take the other fields from the first or
            # from the last chunk.
            self._first = self._first or chunk
            for key in CONSTANT_FIELDS:
                require(
                    chunk.get(key) == self._first.get(key), f"{key} changed to {chunk.get(key)!r}"
                )
            fingerprint = chunk.get("system_fingerprint")
            expected = (
                self._fingerprint if self._allow_variants else self._first.get("system_fingerprint")
            )
            # Some servers send the fingerprint in some chunks only.
            is_absent = self._allow_variants and None in (fingerprint, expected)
            require(
                is_absent or fingerprint == expected,
                f"system_fingerprint changed to {fingerprint!r}",
            )
            self._fingerprint = expected or fingerprint
            choices = require_objects(chunk.get("choices"), "choices")
            for choice in choices:
                self._check_choice(choice)
            # The usage chunk (`stream_options.include_usage`) has no choices, and
            # follows the end of all choices.
            if not choices:
                require(self._include_usage, "a usage chunk that was not requested")
                require(self._has_ended, "usage before all choices ended")
                check_usage(chunk.get("usage"))
                self._has_usage = True
        require(
            stream.done != self._has_failed,
            "[DONE] after an error" if self._has_failed else "no [DONE]",
        )
        require(self._has_failed or self._has_ended, "a choice without finish_reason")
        require(
            self._has_failed or self._has_usage == self._include_usage,
            "usage was requested and is missing",
        )
        return stream.payloads

    @property
    @abstractmethod
    def _has_ended(self) -> bool:
        """Whether every choice has finished."""

    @abstractmethod
    def _check_choice(self, choice: Json) -> None:
        """Check one choice of a chunk."""
