"""Reads the events of an upstream's Messages response. Pure."""

from __future__ import annotations

import logging

import msgspec
from msgspec import Raw, Struct

from ...core.errors import EngineError
from ...core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...core.message import (
    SealKind,
)
from .errors import build_event_error, decode_data
from .wire import WireError

log = logging.getLogger(__name__)


_REASONS = {
    "end_turn": FinishReason.STOP,
    "tool_use": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.CONTEXT_LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


class _OutputDetails(Struct, frozen=True, gc=False):
    thinking_tokens: int | None = None


class _Usage(Struct, frozen=True, gc=False):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Message(Struct, frozen=True):
    usage: _Usage | None = None


class _Block(Struct, frozen=True):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = Raw()


class _Delta(Struct, frozen=True, gc=False):
    """The delta of a block, or of the message, which has no type."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _WireEvent(Struct, frozen=True):
    """An event; `type` determines which fields it has. Unknown types are ignored:
    Anthropic may add new ones.
    """

    type: str
    index: int | None = None
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: WireError | str | None = None


_decode = msgspec.json.Decoder(_WireEvent).decode


class MessageEventReader:
    """Implements `StreamReader` for the events of one message."""

    def __init__(self) -> None:
        self.has_started = self.is_done = False
        self.warnings: tuple[str, ...] = ()
        self._usage = Usage()
        self._open: _Block | None = None
        self._open_index = -1
        self._signature: list[str] = []
        # Whether the open call has arguments so far; and whether an ended call had
        # none, so `{}` may have to be sent.
        self._has_arguments = self._owes_arguments = False
        self._has_finished = False

    def read(self, data: bytes) -> list[Event]:
        event = decode_data(_decode, data, "event")
        if event.type == "content_block_delta":
            return self._read_delta(event)
        events: list[Event] = []
        match event.type:
            case "error":
                raise build_event_error(event.error or WireError(), has_started=self.has_started)
            case "message_start":
                self._count(None if event.message is None else event.message.usage)
                self.has_started = True
                # The output tokens of this event are those so far; only `message_delta`
                # has all.
                self._usage = msgspec.structs.replace(self._usage, completion=None)
                usage = self._usage
                events.append(
                    Started(
                        usage.prompt,
                        usage.cached,
                        written_tokens=usage.written,
                        warnings=self.warnings,
                    )
                )
            case "content_block_start":
                events = [*self._stop_block(), *self._start_block(event)]
            case "content_block_stop":
                events = self._stop_block()
            case "message_delta":
                self._count(event.usage)
                events = self._stop_block()
                delta = event.delta or _Delta()
                if delta.stop_reason is None:
                    return events
                reason = _REASONS.get(delta.stop_reason)
                if reason is None or not self.has_started or self._has_finished:
                    raise EngineError(
                        f"The upstream ended its response with {delta.stop_reason!r:.80}."
                    )
                self._has_finished = True
                # Only if the token limit did not cut the call before its arguments.
                if self._owes_arguments and reason is FinishReason.STOP:
                    events.append(ToolCallDelta(0, "{}"))
                stop = delta.stop_sequence if delta.stop_reason == "stop_sequence" else None
                events.append(ChoiceFinished(0, reason, stop))
            case "message_stop":
                self.is_done = True
            case _:
                pass
        return events

    def read_whole(self, body: bytes) -> list[Event]:
        del body
        raise EngineError("The upstream answered without a stream.")

    def close(self) -> list[Event]:
        if not self.is_done or not self._has_finished:
            raise EngineError("The upstream's answer was cut off.")
        return [Finished(self._usage)]

    def _start_block(self, event: _WireEvent) -> list[Event]:
        block = event.content_block
        if block is None or not self.has_started or self._has_finished:
            raise EngineError("The upstream sent an event out of order.")
        self._open = block
        self._open_index = -1 if event.index is None else event.index
        self._signature = [block.signature or ""]
        owed = [ToolCallDelta(0, "{}")] if self._owes_arguments else []
        self._has_arguments = self._owes_arguments = False
        match block.type:
            case "text" if block.text:
                return [*owed, TextDelta(0, block.text)]
            case "thinking" if block.thinking:
                return [*owed, ReasoningDelta(0, block.thinking)]
            case "redacted_thinking":
                return [
                    *owed,
                    ReasoningDelta(0, "", seal=SealKind.ANTHROPIC_REDACTED + (block.data or "")),
                ]
            case "tool_use":
                if not block.id or not block.name:
                    raise EngineError("The upstream started a tool call without a name or an id.")
                return [*owed, ToolCallStart(0, block.id, block.name)]
            case "text" | "thinking":
                return [*owed]
            case _:
                # Such as blocks of tools that the vendor runs, which no request asks
                # for.
                log.warning(
                    "a block of type %.40r in an upstream's response was ignored", block.type
                )
                return [*owed]

    def _read_delta(self, event: _WireEvent) -> list[Event]:
        block = self._open
        delta = event.delta
        if (
            block is None
            or delta is None
            or (event.index is not None and event.index != self._open_index)
        ):
            raise EngineError("The upstream sent an event out of order.")
        if delta.text and block.type == "text":
            return [TextDelta(0, delta.text)]
        if delta.thinking and block.type == "thinking":
            return [ReasoningDelta(0, delta.thinking)]
        if delta.signature:
            self._signature.append(delta.signature)
        if delta.partial_json and block.type == "tool_use":
            self._has_arguments = True
            return [ToolCallDelta(0, delta.partial_json)]
        return []

    def _stop_block(self) -> list[Event]:
        block = self._open
        self._open = None
        if block is None:
            return []
        if block.type == "thinking" and (signature := "".join(self._signature)):
            return [ReasoningDelta(0, "", seal=SealKind.ANTHROPIC + signature)]
        if block.type == "tool_use" and not self._has_arguments:
            # Some servers send the whole input in the block itself.
            if bytes(block.input) not in (b"", b"{}", b"null"):
                return [ToolCallDelta(0, bytes(block.input).decode())]
            # The next events show whether the call has no arguments, or the token limit
            # cut it before them.
            self._owes_arguments = True
        return []

    def _count(self, usage: _Usage | None) -> None:
        """Update the usage. The counts of `message_delta` are for the whole message;
        missing ones do not change.
        """
        if usage is None:
            return
        old = self._usage
        cached = (
            old.cached if usage.cache_read_input_tokens is None else usage.cache_read_input_tokens
        )
        written = (
            old.written
            if usage.cache_creation_input_tokens is None
            else usage.cache_creation_input_tokens
        )
        # Anthropic's `input_tokens` excludes tokens that are read from the cache or
        # written to it.
        uncached = usage.input_tokens
        if uncached is None and old.prompt is not None:
            uncached = old.prompt - (old.cached or 0) - (old.written or 0)
        prompt = None if uncached is None else uncached + (cached or 0) + (written or 0)
        details = usage.output_tokens_details
        self._usage = Usage(
            # Some servers say 0 until they know the count.
            prompt or None,
            old.completion if usage.output_tokens is None else usage.output_tokens,
            cached,
            old.reasoning if details is None else details.thinking_tokens,
            written,
        )
