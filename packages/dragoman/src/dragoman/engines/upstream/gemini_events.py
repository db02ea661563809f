"""Reads an upstream's Gemini response: the chunks of its stream, or one object. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from ...core.errors import EngineError
from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    Usage,
)
from ...core.message import SealKind
from .answer_items import ItemSequencer, TextItem, TextKind, render_arguments
from .errors import build_event_error, read_error, read_error_event
from .event_decoding import build_decoder, clean_text, decode_data
from .request_warnings import RequestWarnings

log = logging.getLogger(__name__)

_REASONS = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "OTHER": FinishReason.ABORT,
    **dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "LANGUAGE",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "MODEL_ARMOR",
        ),
        FinishReason.CONTENT_FILTER,
    ),
}
_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"


class _Call(Struct, frozen=True):
    id: str | int | None = None
    name: str | None = None
    args: Any = None


class _Part(Struct, frozen=True):
    """A part of a candidate: a piece of text or of a thought, a call, or what only
    Google's own tools and media models send.
    """

    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    functionCall: _Call | None = None
    inlineData: Any = None
    fileData: Any = None
    executableCode: Any = None
    codeExecutionResult: Any = None


class _Content(Struct, frozen=True):
    parts: list[_Part | None] | None = None


class _Candidate(Struct, frozen=True):
    index: int | None = None
    content: _Content | None = None
    finishReason: str | None = None


class _Feedback(Struct, frozen=True):
    """What Google says of the prompt. blockReason: why it was not answered."""

    blockReason: str | None = None


class _Usage(Struct, frozen=True):
    """Token counts. candidatesTokenCount excludes thoughts."""

    promptTokenCount: int | None = None
    candidatesTokenCount: int | None = None
    thoughtsTokenCount: int | None = None
    cachedContentTokenCount: int | None = None
    toolUsePromptTokenCount: int | None = None


class _Chunk(Struct, frozen=True):
    """A chunk of a stream, or a whole response."""

    candidates: list[_Candidate | None] | None = None
    promptFeedback: _Feedback | None = None
    usageMetadata: _Usage | None = None
    error: Any = None


_decoder = build_decoder(_Chunk)
_array_decoder = build_decoder(list[_Chunk])


class GeminiEventReader:
    """Implements `StreamReader` for the chunks of one candidate.

    No event ends the stream: it is complete if a chunk has a finish reason.

    new_id: as in `ItemSequencer`.
    """

    def __init__(self, new_id: Callable[[], str] | None = None) -> None:
        self.has_started = self.is_done = False
        self.warnings = RequestWarnings()
        self._counts = _Usage()
        self._items = ItemSequencer(0, new_id)
        self._item: TextItem | None = None
        """The text or thought that the next piece may continue."""
        self._reason: FinishReason | None = None

    def read(self, data: bytes, name: str = "") -> list[Event]:
        if data.strip() == b"[DONE]":
            # Gateways in front of Gemini add the end of OpenAI's streams.
            return []
        if name == "error":
            raise build_event_error(read_error_event(data), has_started=self.has_started)
        return self._read_chunk(decode_data(_decoder, data, "event"))

    def read_whole(self, body: bytes) -> list[Event]:
        """Read one object, or the array that a stream without events is."""
        if body.lstrip().startswith(b"["):
            chunks = decode_data(_array_decoder, body, "response")
        else:
            chunks = [decode_data(_decoder, body, "response")]
        return [event for chunk in chunks for event in self._read_chunk(chunk)]

    def close(self) -> list[Event]:
        reason = self._reason
        if reason is None:
            raise EngineError("The upstream's answer was cut off.")
        self._items.close(is_cut_off=reason is not FinishReason.STOP)
        self.is_done = True
        return [*self._items.take(), ChoiceFinished(0, reason), Finished(self._build_usage())]

    def _read_chunk(self, chunk: _Chunk) -> list[Event]:
        if chunk.error:
            raise build_event_error(read_error(chunk.error), has_started=self.has_started)
        self._count(chunk.usageMetadata)
        events: list[Event] = []
        if not self.has_started:
            self.has_started = True
            usage = self._build_usage()
            events.append(Started(usage.prompt, usage.cached, warnings=self.warnings.all))
        if chunk.promptFeedback is not None and chunk.promptFeedback.blockReason:
            self._reason = FinishReason.CONTENT_FILTER
        for candidate in chunk.candidates or ():
            if candidate is not None:
                self._read_candidate(candidate)
        return [*events, *self._items.take()]

    def _read_candidate(self, candidate: _Candidate) -> None:
        if candidate.index:
            raise EngineError("The upstream sent several candidates, but one was requested.")
        content = candidate.content or _Content()
        for part in content.parts or ():
            if part is not None:
                self._read_part(part)
        word = candidate.finishReason
        if word and word != _UNSPECIFIED:
            # Older models state it in each chunk.
            self._reason = _REASONS.get(word)
            if self._reason is None:
                raise EngineError(f"The upstream ended its response with {word!r:.80}.")

    def _read_part(self, part: _Part) -> None:
        signature = part.thoughtSignature
        if part.functionCall is not None:
            self._seal(signature)
            self._read_call(part.functionCall)
        elif part.text is not None:
            kind: TextKind = ReasoningDelta if part.thought else TextDelta
            continues = self._item is not None and self._item.kind is kind
            # It seals the reasoning before its part. At the end of a text that has
            # begun, it is the signature of the whole turn.
            if not continues and kind is TextDelta:
                self._seal(signature)
                signature = None
            self._add_text(kind, part.text)
            self._seal(signature)
        elif part.inlineData is not None or part.fileData is not None:
            raise EngineError("The upstream sent media, which cannot be passed on.")
        else:
            self._seal(signature)
            if part.executableCode is not None or part.codeExecutionResult is not None:
                log.warning("a part of a tool that an upstream runs was left out")

    def _add_text(self, kind: TextKind, text: str) -> None:
        if not text:
            return
        if self._item is None or self._item.kind is not kind:
            self._item = TextItem(kind)
        self._items.add(self._item, text)

    def _read_call(self, call: _Call) -> None:
        if not call.name:
            raise EngineError("The upstream started a tool call without a name.")
        self._item = None
        started = self._items.start_call(None if call.id in (None, "") else str(call.id), call.name)
        self._items.add_arguments(started, render_arguments(call.args) or "{}")
        self._items.end_call(started)

    def _seal(self, signature: str | None) -> None:
        """Emit a signature as the seal of the reasoning before it, which may have no
        text.
        """
        if not signature:
            return
        item = self._item
        if item is None or item.kind is not ReasoningDelta:
            item = TextItem(ReasoningDelta)
        self._items.add(item, "", seal=SealKind.GEMINI + clean_text(signature))
        self._item = None

    def _count(self, usage: _Usage | None) -> None:
        """Update the counts. Each chunk has those so far; missing ones do not change."""
        if usage is None:
            return
        known = {
            name: count
            for name, count in msgspec.structs.asdict(usage).items()
            if count is not None
        }
        self._counts = msgspec.structs.replace(self._counts, **known)

    def _build_usage(self) -> Usage:
        counts = self._counts
        prompt = counts.promptTokenCount
        if prompt is not None:
            # Google counts what its own tools add to the prompt by itself.
            prompt += counts.toolUsePromptTokenCount or 0
        thoughts = counts.thoughtsTokenCount
        completion = counts.candidatesTokenCount
        if thoughts is not None:
            completion = (completion or 0) + thoughts
        return Usage(prompt, completion, counts.cachedContentTokenCount, thoughts)
