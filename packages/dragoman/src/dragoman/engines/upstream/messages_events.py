"""Reads an upstream's Messages response: its events, or the message that a server sent
instead of them. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
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
from ...core.message import (
    SealKind,
)
from .answer_items import CallItem, ItemSequencer, TextItem, TextKind, render_arguments
from .content_parts import join_content
from .errors import build_event_error, read_error, read_error_event
from .event_decoding import build_decoder, clean_text, decode_data
from .request_warnings import RequestWarnings

log = logging.getLogger(__name__)


_REASONS = {
    "end_turn": FinishReason.STOP,
    "tool_use": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.CONTEXT_LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}


_BLOCK_TYPES = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


class _OutputDetails(Struct, frozen=True, gc=False):
    thinking_tokens: int | None = None


class _Usage(Struct, frozen=True, gc=False):
    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Block(Struct, frozen=True):
    """A content block. text, thinking, input: usually empty in a stream, where deltas
    follow.
    """

    type: str | None = None
    text: Any = None
    thinking: Any = None
    signature: str | None = None
    data: str | None = None
    id: str | int | None = None
    name: str | None = None
    input: Any = None


class _Message(Struct, frozen=True):
    """A message. In a stream, its content is usually empty, as blocks follow."""

    type: str | None = None
    content: list[_Block | None] | str | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: _Usage | None = None
    error: Any = None
    message: Any = None


class _Delta(Struct, frozen=True):
    """The delta of a block, or of the message, which has no type."""

    type: str | None = None
    text: Any = None
    thinking: Any = None
    signature: str | None = None
    partial_json: Any = None
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _WireEvent(Struct, frozen=True):
    """An event; `type` determines which fields it has. Unknown types are ignored:
    Anthropic may add new ones.
    """

    type: str | None = None
    index: int | None = None
    message: _Message | str | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: Any = None


_decoder = build_decoder(_WireEvent)
_message_decoder = build_decoder(_Message)


class _OpenBlock:
    """What has been received of a block.

    call: the call of a tool_use block.
    whole: the block as it came whole after its start; empty if it did not.
    is_whole: whether it came whole, as part of a message.
    is_sealed: whether its seal has been emitted.
    """

    def __init__(self, start: _Block, call: CallItem | None) -> None:
        self.start = start
        self.call = call
        self.signature: list[str] = []
        self.whole = _Block()
        self.is_open = True
        self.is_whole = False
        self.is_sealed = False
        self._texts: dict[TextKind, TextItem] = {}

    def find_text(self, kind: TextKind) -> TextItem:
        return self._texts.setdefault(kind, TextItem(kind))

    @property
    def seal(self) -> str:
        """The seal of a block of reasoning; empty while there is none."""
        match self.start.type:
            case "thinking":
                kind = SealKind.ANTHROPIC
                signatures = ("".join(self.signature), self.start.signature, self.whole.signature)
                data = next(filter(None, signatures), "")
            case "redacted_thinking":
                kind = SealKind.ANTHROPIC_REDACTED
                data = self.start.data or self.whole.data
            case _:
                return ""
        return kind + clean_text(data) if data else ""

    @property
    def is_untouched(self) -> bool:
        has_arguments = self.call is not None and any(self.call.pieces)
        return not has_arguments and not any(item.pieces for item in self._texts.values())


class MessageEventReader:
    """Implements `StreamReader` for the events of one message.

    new_id: as in `ItemSequencer`.
    """

    def __init__(self, new_id: Callable[[], str] | None = None) -> None:
        self.has_started = self.is_done = False
        self.warnings = RequestWarnings()
        self._usage = Usage()
        self._items = ItemSequencer(0, new_id)
        self._blocks: dict[int, _OpenBlock] = {}
        self._last_index = -1
        # A call that has ended without arguments so far: `{}` may have to be sent.
        self._bare_call: CallItem | None = None
        self._finish: ChoiceFinished | None = None
        self._stop_reason: str | None = None

    def read(self, data: bytes, name: str = "") -> list[Event]:
        if data.strip() == b"[DONE]":
            # Gateways in front of Messages add the end of OpenAI's streams.
            return []
        if name == "error":
            error = read_error_event(data)
            raise build_event_error(error, has_started=self.has_started)
        event = decode_data(_decoder, data, "event")
        type = event.type or name
        if type == "error" or event.error:
            error = read_error(event.error or event.message)
            raise build_event_error(error, has_started=self.has_started)
        if type == "content_block_delta":
            self._read_delta(event)
            return self._items.take()
        if type == "message":
            return self.read_whole(data)
        return self._read_event(type, event)

    def read_whole(self, body: bytes) -> list[Event]:
        message = decode_data(_message_decoder, body, "message")
        if message.type == "error" or message.error:
            error = read_error(message.error or message.message)
            raise build_event_error(error, has_started=False)
        events = self._start(message)
        return [*events, *self._items.take(), *self._stop()]

    def close(self) -> list[Event]:
        if not self.is_done or self._finish is None:
            raise EngineError("The upstream's answer was cut off.")
        return [Finished(self._usage)]

    def _read_event(self, type: str, event: _WireEvent) -> list[Event]:
        events: list[Event] = []
        message = event.message if isinstance(event.message, _Message) else None
        match type:
            case "message_start":
                events = self._start(message or _Message())
                if self._finish is None:
                    # The output tokens of this event are those so far; only
                    # `message_delta` has all.
                    self._usage = msgspec.structs.replace(self._usage, completion=None)
            case "content_block_start":
                self._start_block(event.index, event.content_block)
            case "content_block_stop":
                block = self._find_block(event.index)
                if block is not None and event.content_block is not None:
                    self._complete_block(block, event.content_block)
                self._stop_block(block)
            case "message_delta":
                self._count(event.usage)
                delta = event.delta or _Delta()
                if delta.text or delta.thinking or delta.partial_json:
                    raise EngineError("The upstream sent an event out of order.")
                self._read_message(message or _Message())
                self._read_stop(delta.stop_reason, delta.stop_sequence)
            case "message_stop":
                self._read_message(message or _Message())
                return [*self._items.take(), *self._stop()]
            case _:
                pass
        return [*events, *self._items.take()]

    def _start(self, message: _Message) -> list[Event]:
        """Read the start of the message, which some servers send whole."""
        self._count(message.usage)
        events: list[Event] = []
        if not self.has_started:
            self.has_started = True
            usage = self._usage
            events.append(
                Started(
                    usage.prompt,
                    usage.cached,
                    written_tokens=usage.written,
                    warnings=self.warnings.all,
                )
            )
        self._read_message(message)
        return events

    def _read_message(self, message: _Message) -> None:
        """Read the blocks of a message, and compare those that are known."""
        content = message.content
        if isinstance(content, str):
            content = [_Block("text", content)] if content else []
        for i, block in enumerate(block for block in content or () if block is not None):
            if (known := self._blocks.get(i)) is None:
                self._start_block(i, block)
                self._blocks[i].is_whole = True
                self._stop_block(self._blocks[i])
            else:
                self._complete_block(known, block)
        self._read_stop(message.stop_reason, message.stop_sequence)

    def _start_block(self, index: int | None, block: _Block | None) -> None:
        if block is None or not self.has_started or self._finish is not None:
            raise EngineError("The upstream sent an event out of order.")
        block = msgspec.structs.replace(block, type=block.type or _guess_type(block))
        if index is None:
            index = max(self._blocks, default=-1) + 1
        known = self._blocks.get(index)
        if known is not None:
            if known.is_open and known.is_untouched and known.start == block:
                # A repeated event.
                return
            # Some servers number all blocks 0. But the block must be another one.
            if known.is_whole or (block.id is not None and block.id == known.start.id):
                raise EngineError(f"The upstream started content block {index} twice.")
        if (last := self._blocks.get(self._last_index)) is not None and last.call is None:
            # Some servers do not end blocks. A tool_use block may be interleaved with
            # the next.
            self._stop_block(last)
        self._end_bare_call(has_arguments=True)
        call: CallItem | None = None
        if block.type == "tool_use":
            if not block.name:
                raise EngineError("The upstream started a tool call without a name.")
            id = None if block.id in (None, "") else str(block.id)
            call = self._items.start_call(id, block.name)
        self._blocks[index] = opened = _OpenBlock(block, call)
        self._last_index = index
        for kind, text in _read_block(block):
            self._items.add(opened.find_text(kind), text)
        if block.type not in _BLOCK_TYPES:
            # Such as blocks of tools that the vendor runs, which no request asks for.
            log.warning("a block of type %.40r in an upstream's response was ignored", block.type)

    def _find_block(self, index: int | None) -> _OpenBlock | None:
        return self._blocks.get(self._last_index if index is None else index)

    def _read_delta(self, event: _WireEvent) -> None:
        block = self._find_block(event.index)
        delta = event.delta
        if block is None or delta is None or (not block.is_open and block.call is None):
            raise EngineError("The upstream sent an event out of order.")
        if delta.signature:
            block.signature.append(delta.signature)
        if block.start.type not in _BLOCK_TYPES:
            return
        fields: tuple[tuple[TextKind, object], ...] = (
            (TextDelta, delta.text),
            (ReasoningDelta, delta.thinking),
        )
        for kind, content in fields:
            if content and block.call is not None:
                raise EngineError("The upstream sent text within a tool call.")
            text = content if isinstance(content, str) else join_content(content, kind)
            self._items.add(block.find_text(kind), text)
        if arguments := render_arguments(delta.partial_json):
            if block.call is None:
                raise EngineError("The upstream sent arguments outside of a tool call.")
            self._items.add_arguments(block.call, arguments)

    def _stop_block(self, block: _OpenBlock | None) -> None:
        if block is None or not block.is_open:
            return
        block.is_open = False
        self._seal_block(block)
        call = block.call
        if call is None:
            return
        # Some servers send the whole input in the block itself.
        if block.start.input not in (None, {}):
            self._items.complete_call(call, block.start.input)
        if call.text.strip():
            self._items.end_call(call)
        else:
            # The next events show whether the call has no arguments, or the token limit
            # cut it before them.
            self._end_bare_call(has_arguments=True)
            self._bare_call = call

    def _complete_block(self, known: _OpenBlock, whole: _Block) -> None:
        """Compare a whole block with what was received of it, and add the rest."""
        texts: dict[TextKind, str] = {}
        for kind, text in _read_block(whole):
            texts[kind] = texts.get(kind, "") + text
        for kind, text in texts.items():
            self._items.complete(known.find_text(kind), text)
        if known.call is not None and whole.input not in (None, {}):
            self._items.complete_call(known.call, whole.input)
        known.whole = whole
        self._stop_block(known)
        self._seal_block(known)

    def _seal_block(self, block: _OpenBlock) -> None:
        """Emit the seal of a block of reasoning, once it is known."""
        seal = block.seal
        if not seal or block.is_sealed:
            return
        if block is not self._blocks.get(self._last_index):
            # Behind other blocks it would seal nothing.
            log.warning("a signature that an upstream sent after the next block was ignored")
            return
        block.is_sealed = True
        self._items.add(block.find_text(ReasoningDelta), "", seal=seal)

    def _end_bare_call(self, *, has_arguments: bool) -> None:
        """End the call without arguments, if any. has_arguments: whether it has the
        arguments `{}`.
        """
        call = self._bare_call
        self._bare_call = None
        if call is not None and not call.is_ended:
            self._items.end_call(call, is_cut_off=not has_arguments)

    def _read_stop(self, stop_reason: str | None, stop_sequence: str | None) -> None:
        """Read the reason of the end, if there is one."""
        if stop_reason is None:
            return
        reason = _REASONS.get(stop_reason)
        is_repeated = stop_reason == self._stop_reason
        if reason is None or not self.has_started or (self._finish is not None and not is_repeated):
            raise EngineError(f"The upstream ended its response with {stop_reason!r:.80}.")
        for block in self._blocks.values():
            self._stop_block(block)
        # Only if the token limit did not cut the call before its arguments.
        self._end_bare_call(has_arguments=reason is FinishReason.STOP)
        self._items.close(is_cut_off=reason is not FinishReason.STOP)
        if stop_reason == "tool_use":
            self._items.check_not_empty(stop_reason)
        stop = stop_sequence if stop_reason == "stop_sequence" else None
        self._stop_reason = stop_reason
        self._finish = ChoiceFinished(0, reason, None if stop is None else clean_text(stop))

    def _stop(self) -> list[Event]:
        """Read the end of the stream."""
        self.is_done = True
        return [] if self._finish is None else [self._finish]

    def _count(self, usage: _Usage | None) -> None:
        """Update the usage. The counts of `message_delta` are for the whole message;
        missing ones do not change, nor do known ones of which some servers say 0.
        """
        if usage is None:
            return
        old = self._usage
        cached = _update_count(old.cached, usage.cache_read_input_tokens)
        written = _update_count(old.written, usage.cache_creation_input_tokens)
        # Anthropic's `input_tokens` excludes tokens that are read from the cache or
        # written to it.
        uncached = usage.input_tokens
        if not uncached and old.prompt is not None:
            uncached = old.prompt - (old.cached or 0) - (old.written or 0)
        prompt = None if uncached is None else uncached + (cached or 0) + (written or 0)
        details = usage.output_tokens_details or _OutputDetails()
        self._usage = Usage(
            # Some servers say 0 until they know the count.
            prompt or None,
            _update_count(old.completion, usage.output_tokens),
            cached,
            _update_count(old.reasoning, details.thinking_tokens),
            written,
        )


def _update_count(known: int | None, newer: int | None) -> int | None:
    """Return a count after a newer one; if that is missing or 0, the known one."""
    return newer if newer or known is None else known


def _read_block(block: _Block) -> Iterator[tuple[TextKind, str]]:
    """Read the texts of a block, which is whole or the start of one."""
    if block.type == "text":
        yield TextDelta, join_content(block.text)
    elif block.type == "thinking":
        yield ReasoningDelta, join_content(block.thinking, ReasoningDelta)


def _guess_type(block: _Block) -> str:
    """Guess the type of a block without one."""
    if block.name:
        return "tool_use"
    return "thinking" if block.thinking is not None else "text"
