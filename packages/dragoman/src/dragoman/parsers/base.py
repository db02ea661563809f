"""Base of the output parsers: the buffer of unreleased text and its tokens, prefix
matching, and chains of parsers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum

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
from ..core.syntax import Parser

_WHITESPACE = re.compile(r"[ \t\r\n]*")
# Longer than any added token: a token that is a marker is found even if its text
# arrives in several deltas.
_MAX_TOKEN_BYTES = 64
_REPLACEMENT_CHAR = "\ufffd".encode()


class Buffer:
    """Text that has not been released yet, together with its tokens, so that no token
    is lost.

    A token is released with its first released character; when text is dropped, with
    its last dropped character.

    single_tokens: markers that are one token of the vocabulary; see `is_marker`.
    """

    __slots__ = (
        "_chunks",
        "_covered",
        "_has_tokens",
        "_marker_ends",
        "_offset",
        "_single_tokens",
        "_tokens",
        "_unmatched_bytes",
        "end",
        "released",
    )

    def __init__(self, single_tokens: Collection[str] = ()) -> None:
        # Offsets are in characters from the start of the stream. None while empty,
        # which is nearly always: an empty deque takes most of a kilobyte.
        self._chunks: deque[str] | None = None
        self._offset = 0  # Characters of the first chunk that have been released.
        self._tokens: deque[tuple[int, int, Token]] | None = (
            None  # Tokens with the offsets of their text.
        )
        self._covered = 0  # Offset of the end of the last token's text.
        self.end = 0
        """Offset of the end of all text that has arrived."""
        self.released = 0
        """Offset of the end of the released text, which is the start of the buffer."""
        self._single_tokens = frozenset(single_tokens)
        self._has_tokens = False
        self._unmatched_bytes = (
            b""  # Text after the last token; it belongs to tokens that have not arrived.
        )
        self._marker_ends: dict[int, int] | None = (
            None  # Lengths of tokens that are markers, by their end offsets.
        )

    def __len__(self) -> int:
        return self.end - self.released

    @property
    def is_empty(self) -> bool:
        """Whether no text and no tokens are buffered."""
        return self.end == self.released and not self._tokens

    @property
    def start(self) -> int:
        """Offset of the buffer's start, in characters from the start of the stream."""
        return self.released

    def push(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self._single_tokens:
            # Record where tokens that are a whole marker end, by aligning the tokens
            # with the text. Bytes are aligned, since a byte-level BPE token may hold
            # half of a character, which has no text of its own. Text and tokens need
            # not arrive together: a token's text may be held back until its last
            # character is complete.
            data = self._unmatched_bytes + text.encode()
            pos = 0
            self._has_tokens = self._has_tokens or bool(tokens)
            for token in tokens:
                start = data.find(token.utf8, pos) if token.text in self._single_tokens else -1
                if start < 0:
                    pos += _count_overlap(data, pos, token)
                    continue
                pos = start + len(token.utf8)
                self._marker_ends = self._marker_ends or {}
                self._marker_ends[self.end + len(text) - len(data[pos:].decode())] = len(token.text)
            # Bounded: if the tokens do not spell the text (a normalizing tokenizer), it
            #     would grow with the output.
            self._unmatched_bytes = data[pos:][-_MAX_TOKEN_BYTES:]
        if text:
            self._chunks = self._chunks or deque()
            self._chunks.append(text)
        self.end += len(text)
        if tokens:
            self._tokens = self._tokens or deque()
            self._tokens.extend(self._spans(text, tokens))
            self._covered = self.end

    def _spans(self, text: str, tokens: tuple[Token, ...]) -> Iterator[tuple[int, int, Token]]:
        """Yield each token with the begin and end offsets of its text; the last token
        spans the rest of the text.
        """
        # While streaming, most deltas have one token, and nothing has to be aligned.
        if len(tokens) == 1 and not tokens[0].markup:
            yield self._covered, self.end, tokens[0]
            return
        data = text.encode()
        at = 0
        begin = self._covered
        end = self.end - len(text)
        for token in tokens[:-1]:
            token_bytes = data[at : at + _count_overlap(data, at, token)]
            at += len(token_bytes)
            # Offsets count characters. 0b10xxxxxx continues a UTF-8 character; any
            # other byte begins one.
            end += sum(byte & 0xC0 != 0x80 for byte in token_bytes)
            yield min(begin, end), end, token
            # A character of several tokens is released with all of them.
            begin = end - (at < len(data) and data[at] & 0xC0 == 0x80)
        yield (self.end if tokens[-1].markup else begin), self.end, tokens[-1]

    def pop(self, n: int, *, drop: bool = False) -> tuple[str, tuple[Token, ...]]:
        """Release n characters, and the tokens whose text has been released at least in
        part.

        drop: release only tokens whose text has been released completely.
        """
        parts: list[str] = []
        size = n
        self.released += n
        while n and self._chunks:
            chunk = self._chunks[0]
            available = len(chunk) - self._offset
            if n < available:
                parts.append(chunk[self._offset : self._offset + n])
                self._offset += n
                break
            parts.append(chunk[self._offset :] if self._offset else chunk)
            self._chunks.popleft()
            self._offset = 0
            n -= available
        tokens: list[Token] = []
        # A token whose text continues after a dropped marker belongs to the following
        # text.
        released = -1 if drop or not size else self.released
        while self._tokens and (
            self._tokens[0][1] <= self.released or self._tokens[0][0] < released
        ):
            tokens.append(self._tokens.popleft()[2])
        self._chunks = self._chunks or None
        self._tokens = self._tokens or None
        return "".join(parts), tuple(tokens)

    def text(self) -> str:
        """Return the buffered text. The cost is linear in its length."""
        return "".join(self._chunks or ())[self._offset :]

    def peek(self, n: int) -> str:
        """Return the next n characters, which stay in the buffer."""
        text = ""
        offset = self._offset
        for chunk in self._chunks or ():
            text += chunk[offset : offset + n - len(text)]
            if len(text) == n:
                break
            offset = 0
        return text

    def skip(self, n: int) -> None:
        """Advance past n characters that were not buffered, while the buffer is empty."""
        self.end += n
        self.released += n
        self._covered = self.end

    def is_marker(self, marker: str, unread: int) -> bool:
        """Whether the text of a marker, which ends `unread` characters before the end
        of the buffer, is that marker.

        If the marker is one token of the vocabulary, the same text from several tokens
        is ordinary text. If no tokens are known, the text alone decides.
        """
        return (
            marker not in self._single_tokens
            or not self._has_tokens
            or self.end - unread in (self._marker_ends or ())
        )

    def first_mark(self, unread: int) -> int:
        """Return the position of the first marker token within the last `unread`
        characters; -1 if there is none.
        """
        begin = self.end - unread
        starts = [
            end - size for end, size in (self._marker_ends or {}).items() if end - size >= begin
        ]
        return min(starts) - begin if starts else -1


def _count_overlap(data: bytes, pos: int, token: Token) -> int:
    """Return how many bytes at the start of data[pos:] this token wrote. A token may
    hold part of a character.
    """
    token_bytes = token.utf8
    if token.markup:
        return 0
    if data.startswith(token_bytes, pos):
        return len(token_bytes)
    if pos == 0 and token.raw is None:  # The beginning of its text may have been released before.
        return next(
            (n for n in range(len(token_bytes) - 1, 0, -1) if data.startswith(token_bytes[-n:])), 0
        )
    # The detokenizer wrote U+FFFD for bytes that form no character; the replacements
    # belong to their token.
    replaced_bytes = 0
    while token.raw is not None and data.startswith(_REPLACEMENT_CHAR, pos + replaced_bytes):
        replaced_bytes += len(_REPLACEMENT_CHAR)
    return replaced_bytes


def _as_markup(token: Token) -> Token:
    return token if token.markup else msgspec.structs.replace(token, markup=True)


class PrefixResult(Enum):
    """The result of `PrefixMatcher.read`."""

    INCOMPLETE = "more"
    """All text has been read, and more is needed for a result."""
    MATCHED = "mark"
    NO_MATCH = "other"


class PrefixMatcher:
    """Matches the longest of some markers at the start of a text, after optional white
    space.
    """

    __slots__ = ("_candidates", "marker", "matched")

    def __init__(self, markers: Sequence[str]) -> None:
        self._candidates = markers
        self.marker = ""
        """The longest marker that has been read completely."""
        self.matched: int = 0
        """Characters of markers that have been read."""

    def can_match(self, text: str) -> bool:
        """Whether a marker may begin in this text or after it. May be called only
        before `read`.
        """
        stripped = text.lstrip(" \t\r\n")
        return not stripped or any([marker.startswith(stripped[0]) for marker in self._candidates])

    def read(self, text: str, pos: int) -> tuple[int, PrefixResult]:
        """Read text[pos:]. Returns the position after the marker, or that of the first
        character that is in no marker.

        If one marker is a prefix of another, the position may be before `pos`; if
        negative, it is in an earlier delta.
        """
        if not self.matched:
            whitespace = _WHITESPACE.match(text, pos)
            pos = whitespace.end() if whitespace else pos
        while pos < len(text):
            # All candidates begin with the text read so far, so the next character
            # decides which of them remain.
            candidates = [
                marker for marker in self._candidates if marker.startswith(text[pos], self.matched)
            ]
            if not candidates:
                return (
                    (pos - self.matched + len(self.marker), PrefixResult.MATCHED)
                    if self.marker
                    else (pos, PrefixResult.NO_MATCH)
                )
            pos += 1
            self.matched += 1
            self._candidates = candidates
            self.marker = next(
                (marker for marker in candidates if len(marker) == self.matched), self.marker
            )
            if len(self.marker) == self.matched and len(candidates) == 1:
                return pos, PrefixResult.MATCHED
        return pos, PrefixResult.INCOMPLETE


class TextParser(ABC):
    """Base class of parsers: reads text deltas in steps, and passes on all other events
    in order.

    A subclass reads in `_step`, and releases text with `_emit_buffered` and `_drop`.
    """

    def __init__(self, single_tokens: Collection[str] = ()) -> None:
        self._buffer = Buffer(single_tokens)
        self._pending_tokens: list[Token] = []
        """Tokens of dropped text, attached to the next event."""
        self._events: list[Event] = []
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
            case ChoiceFinished(choice, reason, _, tokens):
                self._choice = choice
                self._finish(reason)
                pending = self._take_pending_tokens()
                self._events.append(
                    msgspec.structs.replace(event, tokens=(*pending, *tokens)) if pending else event
                )
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


class ParserChain:
    """Several parsers in sequence; each parses the text that the previous ones have
    left as text.
    """

    def __init__(self, parsers: Sequence[Parser]) -> None:
        self._parsers = tuple(parsers)

    def feed(self, event: Event) -> list[Event]:
        events = [event]
        for parser in self._parsers:
            match events:
                case [single_event]:
                    events = parser.feed(single_event)
                case _:
                    events = [
                        parsed_event
                        for source_event in events
                        for parsed_event in parser.feed(source_event)
                    ]
        return events


def chain_parsers(parsers: Iterable[Parser]) -> Parser:
    """Combine parsers into one. Without parsers, all events pass through."""
    parser_list = tuple(parsers)
    return parser_list[0] if len(parser_list) == 1 else ParserChain(parser_list)
