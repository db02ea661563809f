"""The base class of parsers, which read text deltas in steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from ..core.events import (
    ChoiceFinished,
    Event,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)
from .text_buffer import NO_MARKER_TOKENS, Buffer, MarkerTokens


def _as_markup(token: Token) -> Token:
    return token if token.markup else msgspec.structs.replace(token, markup=True)


class TextParser(ABC):
    """Base class of parsers: reads text deltas in steps, and passes on all other events
    in order.

    A subclass reads in `_step`, and releases text with `_emit_buffered` and `_drop`.
    """

    def __init__(self, markers: MarkerTokens = NO_MARKER_TOKENS) -> None:
        self.is_done = False
        self._buffer = Buffer(markers)
        self._pending_tokens: list[Token] = []
        """Tokens of dropped text, attached to the next event."""
        self._events: list[Event] = []
        self._warnings: list[str] = []
        """Warnings about the choice, for the event that ends it."""
        self._choice = 0

    def feed(self, event: Event) -> list[Event]:
        # By far the most frequent event.
        if type(event) is TextDelta:
            buffer = self._buffer
            # Most deltas of a stream are plain text of the current state. They bypass
            # the buffer, which keeps the cost per token low.
            if event.text and buffer.end == buffer.released and not self._pending_tokens:
                fast_event = self._fast_path(event)
                if fast_event is not None:
                    return [fast_event]
            return self._feed_text(event)
        match event:
            case ReasoningDelta() | RefusalDelta() | ToolCallStart() | ToolCallDelta():
                self._choice = event.choice
                self._interrupt()
                self._events.append(self._attach_pending_tokens(event))
            case ChoiceFinished(choice, reason, stop, tokens):
                self._choice = choice
                # A stop string cuts the text off, as a limit does.
                self._finish(FinishReason.LENGTH if isinstance(stop, str) else reason)
                pending = self._take_pending_tokens()
                if pending or self._warnings:
                    event = msgspec.structs.replace(
                        event,
                        tokens=(*pending, *tokens),
                        warnings=(*event.warnings, *self._warnings),
                    )
                self._events.append(event)
            case _:
                self._events.append(event)
        return self._take_events()

    def _feed_text(self, event: TextDelta) -> list[Event]:
        self._choice = event.choice
        self._buffer.push(event.text, event.tokens)
        self._consume(event.text, 0)
        return self._take_events()

    def _consume(self, text: str, pos: int) -> None:
        """Read text[pos:], the unread end of the buffer."""
        while pos < len(text):
            pos = self._step(text, pos)
            # The position is in an earlier delta: continue in the whole buffered text.
            if pos < 0:
                buffered = self._buffer.text()
                text, pos = buffered, pos + len(buffered) - len(text)

    def _take_events(self) -> list[Event]:
        events = self._events
        self._events = []
        return events

    @abstractmethod
    def _fast_path(self, event: TextDelta) -> Event | None:
        """Return the event for a delta that needs no parsing, else None. Called only
        while the buffer is empty.
        """

    @abstractmethod
    def _step(self, text: str, pos: int) -> int:
        """Read text[pos:], the unread end of the buffer, in the current state.

        Returns the position to continue from: the end of the text that was read, or an
        earlier position from which the new state reads again. A negative position is in
        an earlier delta.
        """

    @abstractmethod
    def _finish(self, reason: FinishReason | None) -> None:
        """Release the buffer at the end of the choice.

        reason: None if the choice is only interrupted.
        """

    @abstractmethod
    def _interrupt(self) -> None:
        """Release the buffer and continue as text, since another part begins that this
        parser does not read.
        """

    def _count_consumed(self, text: str, pos: int) -> int:
        """Return the number of buffered characters that have been read, if text[pos:]
        is still unread.
        """
        return len(self._buffer) - (len(text) - pos)

    def _rewind(self, text: str, pos: int) -> int:
        """Return the position of the buffer's start, to read it again in another state;
        may be negative.
        """
        return pos - self._count_consumed(text, pos)

    def _emit_buffered(
        self, build_event: Callable[[int, str, tuple[Token, ...]], Event], n: int
    ) -> None:
        """Release n characters of the buffer as an event."""
        if n > 0:
            text, tokens = self._buffer.pop(n)
            self._events.append(
                build_event(self._choice, text, (*self._take_pending_tokens(), *tokens))
            )

    def _drop(self, n: int) -> None:
        """Drop n characters of the buffer that are syntax. Their tokens are attached to
        the next event.
        """
        if n > 0:
            self._pending_tokens.extend(self._buffer.pop(n, drop=True)[1])

    def _take_pending_tokens(self, *, call: bool = False) -> tuple[Token, ...]:
        """Take the pending tokens and the buffer's tokens without text.

        call: whether they become part of a tool call. Otherwise they are marked as
            markup, which only logprobs list.
        """
        if not self._pending_tokens and self._buffer.is_empty:
            return ()
        pending = self._pending_tokens if call else map(_as_markup, self._pending_tokens)
        tokens = (*pending, *self._buffer.pop(0)[1])
        self._pending_tokens.clear()
        return tokens

    def _attach_pending_tokens(self, event: Event) -> Event:
        tokens = self._take_pending_tokens()
        match event:
            case _ if not tokens:
                return event
            case ReasoningDelta(choice, text, event_tokens, seal):
                return ReasoningDelta(choice, text, (*tokens, *event_tokens), seal)
            case RefusalDelta(choice, text, event_tokens):
                return RefusalDelta(choice, text, (*tokens, *event_tokens))
            case ToolCallDelta(choice, arguments, event_tokens):
                return ToolCallDelta(choice, arguments, (*tokens, *event_tokens))
            case ToolCallStart(choice, id, name, event_tokens, custom):
                return ToolCallStart(choice, id, name, (*tokens, *event_tokens), custom)
            case _:
                raise AssertionError(f"{type(event).__name__} has no tokens")
