"""The sinks of regions: they convert a region's text into events.

A text region streams; a call streams once its name is known, or is emitted whole when
its region closes. Unparseable text is emitted unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...core.events import (
    Event,
    FinishReason,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)
from ...core.message import Tool
from .region_calls import ParsedCall, parse_calls
from .template import (
    TemplateField,
)

Tokens = tuple[Token, ...]


EventFactory = Callable[[int, str, Tokens], Event]


EmitEvent = Callable[[EventFactory, str, Sequence[Token]], None]
"""Emits an event with a text and its tokens; without text the tokens are attached to
the next event.
"""


class ClosingDelimiter(Struct, frozen=True):
    """A closing delimiter as it was written, and the captures of its groups."""

    text: str
    tokens: Tokens
    captures: Mapping[str, str]


class Sink(Protocol):
    """Receives the text of the open region, and emits events."""

    @property
    def has_output(self) -> bool:
        """Whether any text of the region was emitted."""
        ...

    def feed_prompt(self, text: str) -> None:
        """Take text of the region that is in the prompt; it is parsed but not emitted."""
        ...

    def feed(self, text: str, tokens: Tokens) -> None:
        """Take the next text of the region."""
        ...

    def close(self, closing: ClosingDelimiter) -> None:
        """End the region at its closing delimiter."""
        ...

    def end(self, reason: FinishReason | None) -> None:
        """End the region without a closing delimiter, because the response ends or
        another region begins.
        """
        ...


class DiscardSink:
    """Discards text outside all regions, or after a call."""

    has_output = False

    def __init__(self, emit: EmitEvent) -> None:
        self._emit = emit

    def feed_prompt(self, text: str) -> None:
        pass

    def feed(self, text: str, tokens: Tokens) -> None:  # noqa: ARG002
        self._emit(TextDelta, "", tokens)

    def close(self, closing: ClosingDelimiter) -> None:
        self._emit(TextDelta, "", closing.tokens)

    def end(self, reason: FinishReason | None) -> None:
        pass


class VerbatimSink(DiscardSink):
    """Emits text that turned out not to be a call, with its delimiters."""

    def feed(self, text: str, tokens: Tokens) -> None:
        self._emit(TextDelta, text, tokens)

    def close(self, closing: ClosingDelimiter) -> None:
        self._emit(TextDelta, closing.text, closing.tokens)


class TextSink(DiscardSink):
    """Streams text.

    strip: white space at both ends is stripped.
    separator: precedes the first text, to join it to the field's previous region.
    has_begun: the beginning has already been emitted, so only white space at the end is
        stripped.
    """

    def __init__(
        self,
        emit: EmitEvent,
        event_factory: EventFactory,
        *,
        strip: bool,
        separator: str = "",
        has_begun: bool = False,
    ) -> None:
        super().__init__(emit)
        self._event_factory = event_factory
        self._strip = strip
        self._separator = separator
        self._has_begun = has_begun
        self._pending_whitespace: list[str] = []

    @property
    def has_output(self) -> bool:
        return self._has_begun

    @property
    def is_transparent(self) -> bool:
        """Whether text without trailing white space passes unchanged."""
        return self._has_begun and not self._pending_whitespace

    @property
    def event_factory(self) -> EventFactory:
        return self._event_factory

    def feed_prompt(self, text: str) -> None:
        self._has_begun = self._has_begun or bool(text.strip() if self._strip else text)

    def feed(self, text: str, tokens: Tokens) -> None:
        stripped = text
        whitespace = ""
        if self._strip:
            text = text if self._has_begun else text.lstrip()
            # Trailing white space is held back until more text follows, as it is
            # stripped at the region's end.
            stripped = text.rstrip()
            whitespace = text[len(stripped) :]
        if not stripped:
            self._emit(self._event_factory, "", tokens)
        else:
            self._emit(
                self._event_factory,
                "".join([self._separator, *self._pending_whitespace, stripped]),
                tokens,
            )
            self._has_begun = True
            self._separator = ""
            self._pending_whitespace.clear()
        if whitespace:
            self._pending_whitespace.append(whitespace)


class BufferedCallSink(DiscardSink):
    """Buffers a region whose calls can only be parsed when it is complete.

    captures: the groups that its opening delimiter captured.
    """

    def __init__(
        self,
        emit: EmitEvent,
        field: TemplateField,
        tools: Mapping[str, Tool],
        new_id: Callable[[], str],
        captures: Mapping[str, str],
    ) -> None:
        super().__init__(emit)
        self._field = field
        self._tools = tools
        self._new_id = new_id
        self._captures = captures
        self._opening_text = ""
        self._prompt_chunks: list[str] = []
        self._chunks: list[str] = []
        self._tokens: list[Token] = []

    def set_opening(self, text: str, tokens: Tokens) -> None:
        self._opening_text = text
        self._tokens.extend(tokens)

    def feed_prompt(self, text: str) -> None:
        self._prompt_chunks.append(text)

    def feed(self, text: str, tokens: Tokens) -> None:
        self._chunks.append(text)
        self._tokens.extend(tokens)

    def close(self, closing: ClosingDelimiter) -> None:
        self._tokens.extend(closing.tokens)
        self._parse_calls({**self._captures, **closing.captures}, closing.text)

    def end(self, reason: FinishReason | None) -> None:
        """Parse the calls if the model stopped by itself; a call cut off by the token
        limit is emitted as text.
        """
        if reason is FinishReason.STOP:
            self._parse_calls(self._captures, "")
        else:
            self._emit_as_text("")

    def _parse_calls(self, captures: Mapping[str, str], closing: str) -> None:
        body = "".join([*self._prompt_chunks, *self._chunks])
        try:
            calls = parse_calls(self._field, body, captures, self._tools)
        # Text that is not a valid call is shown to the user instead of lost.
        except ValueError:
            self._emit_as_text(closing)
            return
        self._emit(TextDelta, "", self._tokens)
        for call in calls:
            self._emit(self._build_start_factory(call), call.name, ())
            self._emit(ToolCallDelta, call.arguments, ())

    def _build_start_factory(self, call: ParsedCall) -> EventFactory:
        return lambda choice, _, tokens: ToolCallStart(
            choice, self._new_id(), call.name, tokens, call.is_custom
        )

    def _emit_as_text(self, closing: str) -> None:
        self._emit(TextDelta, "".join([self._opening_text, *self._chunks, closing]), self._tokens)
