"""The grammar that streams of Chat Completions and Completions share: chunks, usage, an error or `[DONE]`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from . import checks
from .checks import Json, ParsedStream, require, require_count, require_objects, require_string

CONSTANT_FIELDS = ("id", "created", "model")


class ChunkState(ABC):
    """The state of a stream. kind: the `object` of its chunks. allow_variants: as in `chat.check_stream`."""

    kind: str

    def __init__(self, include_usage: bool, reasons: tuple[str, ...], *, allow_variants: bool = False) -> None:
        self._include_usage, self._reasons, self._allow_variants = include_usage, reasons, allow_variants
        self._fingerprint: object = None
        self._first: Json | None = None
        self._has_usage = self._has_failed = False

    def check(self, data: bytes) -> list[Json]:
        """Check a whole stream, and return its chunks. Raises Violation."""
        stream = ParsedStream(data)
        for chunk in stream.payloads:
            self._feed(chunk)
        require(stream.done != self._has_failed, "[DONE] after an error" if self._has_failed else "no [DONE]")
        require(self._has_failed or self._has_ended, "a choice without finish_reason")
        require(self._has_failed or self._has_usage == self._include_usage, "usage was requested and is missing")
        return stream.payloads

    def _feed(self, chunk: Json) -> None:
        require(not self._has_failed, "a chunk after an error")
        # Clients that asked for usage stop reading there.
        require(not self._has_usage, "a chunk after the one with usage")
        if "error" in chunk:
            checks.check_error(chunk["error"])
            self._has_failed = True
            return
        self._check_constant(chunk)
        choices = require_objects(chunk.get("choices"), "choices")
        # The usage chunk is the one without choices, after all of them have ended (`stream_options.include_usage`).
        if not choices:
            require(self._include_usage, "a usage chunk that was not requested")
            require(self._has_ended, "usage before all choices ended")
            checks.check_usage(chunk.get("usage"))
            self._has_usage = True
        for choice in choices:
            self._check_choice(choice)

    def _check_constant(self, chunk: Json) -> None:
        require(chunk.get("object") == self.kind, f"object is {chunk.get('object')!r}")
        require_count(chunk.get("created"), "created")
        require_string(chunk.get("id"), "id")
        # Clients group chunks by `id` and keep the rest from any one of them, the first or the last.
        self._first = self._first or chunk
        for key in CONSTANT_FIELDS:
            require(chunk.get(key) == self._first.get(key), f"{key} changed to {chunk.get(key)!r}")
        fingerprint = chunk.get("system_fingerprint")
        known = self._fingerprint if self._allow_variants else self._first.get("system_fingerprint")
        # Servers behind a proxy may send it only in some chunks.
        is_absent = self._allow_variants and None in (fingerprint, known)
        require(is_absent or fingerprint == known, f"system_fingerprint changed to {fingerprint!r}")
        self._fingerprint = known or fingerprint

    @property
    @abstractmethod
    def _has_ended(self) -> bool:
        """Whether every choice has finished."""

    @abstractmethod
    def _check_choice(self, choice: Json) -> None:
        """Check one choice of a chunk."""
