"""The wire format that streams of Chat Completions and Completions share: chunks,
usage, an error or `[DONE]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from .event_streams import ParsedStream
from .json_values import JsonObject, require, require_count, require_objects, require_string
from .openai_values import check_error, check_usage

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
        self._first: JsonObject | None = None
        self._has_usage = False
        self._has_failed = False

    def check(self, data: bytes) -> list[JsonObject]:
        """Check a complete stream, and return its chunks. Raises Violation."""
        stream = ParsedStream(data)
        for chunk in stream.payloads:
            require(not self._has_failed, "a chunk follows an error")
            # Clients that requested usage stop reading at the usage chunk.
            require(not self._has_usage, "a chunk follows the usage chunk")
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
                require(self._include_usage, "a usage chunk without include_usage")
                require(self._has_ended, "the usage chunk precedes the end of a choice")
                check_usage(chunk.get("usage"))
                self._has_usage = True
        require(
            stream.done != self._has_failed,
            "[DONE] after an error" if self._has_failed else "the stream has no [DONE]",
        )
        require(self._has_failed or self._has_ended, "a choice has no finish_reason")
        require(
            self._has_failed or self._has_usage == self._include_usage,
            "the stream has no usage chunk despite include_usage",
        )
        return stream.payloads

    @property
    @abstractmethod
    def _has_ended(self) -> bool:
        """Whether every choice has finished."""

    @abstractmethod
    def _check_choice(self, choice: JsonObject) -> None:
        """Check one choice of a chunk."""
