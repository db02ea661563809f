"""What the streams of Chat Completions and Completions have in common: chunks, usage, an error or `[DONE]`."""

from __future__ import annotations

from abc import ABC, abstractmethod

from . import shapes
from .sse import Stream
from .violation import Json, a_count, a_text, must, objects

CONSTANT = ("id", "created", "model", "system_fingerprint")


class ChunkState(ABC):
    """Where a stream is. kind: what its chunks say that they are."""

    kind: str

    def __init__(self, include_usage: bool, reasons: tuple[str, ...]) -> None:
        self._include_usage, self._reasons = include_usage, reasons
        self._first: Json | None = None
        self._counted = self._failed = False

    def read(self, data: bytes) -> list[Json]:
        """The chunks of a whole stream. Raises Violation."""
        stream = Stream(data)
        for chunk in stream.payloads:
            self._feed(chunk)
        self._close(stream.done)
        return stream.payloads

    def _feed(self, chunk: Json) -> None:
        must(not self._failed, "a chunk after an error")
        must(not self._counted, "a chunk after the one with usage")
        if "error" in chunk:
            shapes.error(chunk["error"])
            self._failed = True
            return
        self._check_constant(chunk)
        choices = objects(chunk.get("choices"), "choices")
        if not choices:
            must(self._include_usage, "a usage chunk that nobody asked for")
            must(self._ended, "usage before all choices ended")
            shapes.usage(chunk.get("usage"))
            self._counted = True
        for choice in choices:
            self._choice(choice)

    def _close(self, done: bool) -> None:
        must(done != self._failed, "[DONE] after an error" if self._failed else "no [DONE]")
        must(self._failed or self._ended, "a choice without finish_reason")
        must(self._failed or self._counted == self._include_usage, "usage was asked for and did not come")

    def _check_constant(self, chunk: Json) -> None:
        must(chunk.get("object") == self.kind, f"object is {chunk.get('object')!r}")
        a_count(chunk.get("created"), "created")
        a_text(chunk.get("id"), "id")
        self._first = self._first or chunk
        for key in CONSTANT:
            must(chunk.get(key) == self._first.get(key), f"{key} changed to {chunk.get(key)!r}")

    @property
    @abstractmethod
    def _ended(self) -> bool:
        """Every choice has finished."""

    @abstractmethod
    def _choice(self, choice: Json) -> None:
        """One choice of a chunk."""
