"""What parsers share: the text they have not released yet, the tokens it came from, and how they are chained.

Knows the events, but no model's syntax.
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

_BLANKS = re.compile(r"[ \t\r\n]*")
_LONGEST_TOKEN = 64
_REPLACED = "\ufffd".encode()


class Buffer:
    """Unreleased text together with the tokens it came from, so that none is lost.

    A token comes out with the first of its characters that is released, one that is dropped with the last of them.
    single: texts that are one token of the vocabulary, see `is_mark`.
    """

    __slots__ = ("_covered", "_cut", "_end", "_loose", "_pieces", "_single", "_taken", "_tokens", "_told", "_whole")

    def __init__(self, single: Collection[str] = ()) -> None:
        # None while nothing is held, as nearly always: an empty deque takes most of a kilobyte.
        self._pieces: deque[str] | None = None
        self._cut = 0  # characters of the first piece that are already taken
        self._tokens: deque[tuple[int, int, Token]] | None = None  # where its text begins and ends
        self._covered = 0  # where the text of the last token ends
        self._end = 0
        self._taken = 0
        self._single = frozenset(single)
        self._told = False
        self._loose = b""  # text behind the last token, of tokens to come
        self._whole: dict[int, int] | None = None  # where tokens that are marks end, and their lengths

    def __len__(self) -> int:
        return self._end - self._taken

    @property
    def is_empty(self) -> bool:
        """Neither text nor tokens are held."""
        return self._end == self._taken and not self._tokens

    @property
    def taken(self) -> int:
        """Where the buffer begins, in characters from the beginning of the stream."""
        return self._taken

    def push(self, text: str, tokens: tuple[Token, ...]) -> None:
        if self._single:
            self._find_whole(text, tokens)
        if text:
            self._pieces = self._pieces or deque()
            self._pieces.append(text)
        self._end += len(text)
        if tokens:
            self._tokens = self._tokens or deque()
            self._tokens.extend(self._spans(text, tokens))
            self._covered = self._end

    def _spans(self, text: str, tokens: tuple[Token, ...]) -> Iterator[tuple[int, int, Token]]:
        """Each token with the place of its text; the last one has what is left of the text."""
        if len(tokens) == 1 and not tokens[0].markup:
            yield self._covered, self._end, tokens[0]
            return
        data, at, begin = text.encode(), 0, self._covered
        end = self._end - len(text)
        for token in tokens[:-1]:
            own = data[at : at + _overlap(data, at, token)]
            at += len(own)
            end += sum(byte & 0xC0 != 0x80 for byte in own)
            yield min(begin, end), end, token
            # A character that several tokens make up comes out with all of them.
            begin = end - (at < len(data) and data[at] & 0xC0 == 0x80)
        yield (self._end if tokens[-1].markup else begin), self._end, tokens[-1]

    def take(self, n: int, *, drop: bool = False) -> tuple[str, tuple[Token, ...]]:
        """Release n characters, and the tokens of which any was released. drop: those of which nothing is left."""
        parts: list[str] = []
        size = n
        self._taken += n
        while n and self._pieces:
            piece = self._pieces[0]
            there = len(piece) - self._cut
            if n < there:
                parts.append(piece[self._cut : self._cut + n])
                self._cut += n
                break
            parts.append(piece[self._cut :] if self._cut else piece)
            self._pieces.popleft()
            self._cut = 0
            n -= there
        out: list[Token] = []
        released = -1 if drop or not size else self._taken
        while self._tokens and (self._tokens[0][1] <= self._taken or self._tokens[0][0] < released):
            out.append(self._tokens.popleft()[2])
        self._pieces, self._tokens = self._pieces or None, self._tokens or None
        return "".join(parts), tuple(out)

    def text(self) -> str:
        """All that is held; costs its length."""
        return "".join(self._pieces or ())[self._cut :]

    def peek(self, n: int) -> str:
        """The next n characters, which stay."""
        out, cut = "", self._cut
        for piece in self._pieces or ():
            out += piece[cut : cut + n - len(out)]
            if len(out) == n:
                break
            cut = 0
        return out

    def skip(self, n: int) -> None:
        """n characters went by without being held, while nothing was."""
        self._end += n
        self._taken += n
        self._covered = self._end

    def is_mark(self, mark: str, unread: int) -> bool:
        """Whether this mark, which ends `unread` characters before the end of the buffer, is one.

        Where the vocabulary has the mark as one token, the same text written with several tokens is only text.
        Without any tokens the text counts.
        """
        return mark not in self._single or not self._told or self._end - unread in (self._whole or ())

    def first_mark(self, unread: int) -> int:
        """How many of the last `unread` characters stand before the first token among them that is a mark; -1 if none
        is."""
        begin = self._end - unread
        starts = [end - size for end, size in (self._whole or {}).items() if end - size >= begin]
        return min(starts) - begin if starts else -1

    def _find_whole(self, text: str, tokens: tuple[Token, ...]) -> None:
        """Note where the tokens that are a whole mark end, by laying the tokens along the text."""
        data, at = self._loose + text.encode(), 0
        self._told = self._told or bool(tokens)
        for token in tokens:
            found = data.find(token.utf8, at) if token.text in self._single else -1
            if found < 0:
                at += _overlap(data, at, token)
                continue
            at = found + len(token.utf8)
            self._whole = self._whole or {}
            self._whole[self._end + len(text) - len(data[at:].decode())] = len(token.text)
        self._loose = data[at:][-_LONGEST_TOKEN:]


def _overlap(data: bytes, at: int, token: Token) -> int:
    """How many bytes of data[at:] this token wrote: bytes, since a token need not hold whole characters."""
    own = token.utf8
    if token.markup:
        return 0
    if data.startswith(own, at):
        return len(own)
    if at == 0 and token.raw is None:  # its beginning may have been released before
        return next((n for n in range(len(own) - 1, 0, -1) if data.startswith(own[-n:])), 0)
    replaced = 0
    while token.raw is not None and data.startswith(_REPLACED, at + replaced):
        replaced += len(_REPLACED)
    return replaced


def _as_markup(token: Token) -> Token:
    return token if token.markup else msgspec.structs.replace(token, markup=True)


class Found(Enum):
    MORE = "more"
    """All text is read and nothing decided."""
    MARK = "mark"
    OTHER = "other"


class Lead:
    """Reads white space and then perhaps one of some marks, the longest, where nothing else may precede it."""

    __slots__ = ("_possible", "mark", "matched")

    def __init__(self, marks: Sequence[str]) -> None:
        self._possible = marks
        self.mark = ""
        """The longest mark that has been read whole."""
        self.matched: int = 0
        """Characters of marks that have been read."""

    def read(self, text: str, at: int) -> tuple[int, Found]:
        """The position behind the mark, or of the first character that belongs to none.

        Where one mark begins another the position may be an earlier one, negative if in an earlier delta.
        """
        if not self.matched:
            blanks = _BLANKS.match(text, at)
            at = blanks.end() if blanks else at
        while at < len(text):
            possible = [mark for mark in self._possible if mark.startswith(text[at], self.matched)]
            if not possible:
                return (at - self.matched + len(self.mark), Found.MARK) if self.mark else (at, Found.OTHER)
            at += 1
            self.matched += 1
            self._possible = possible
            self.mark = next((mark for mark in possible if len(mark) == self.matched), self.mark)
            if len(self.mark) == self.matched and len(possible) == 1:
                return at, Found.MARK
        return at, Found.MORE


class TextParser(ABC):
    """The frame of a parser: text deltas are read in steps, everything else passes in its place.

    A child reads with `_step`, and releases what it has understood with `_release` and `_drop`.
    """

    def __init__(self, single: Collection[str] = ()) -> None:
        self._buffer = Buffer(single)
        self._owed: list[Token] = []
        """Tokens of dropped text; they ride on the next event."""
        self._out: list[Event] = []
        self._choice = 0

    def feed(self, event: Event) -> list[Event]:
        if type(event) is TextDelta:
            return self._text(event)
        match event:
            case ReasoningDelta() | RefusalDelta() | ToolCallStart() | ToolCallDelta():
                self._choice = event.choice
                self._interrupt()
                self._out.append(self._with_owed(event))
            case ChoiceFinished(choice, reason, _, tokens):
                self._choice = choice
                self._finish(reason)
                self._out.append(msgspec.structs.replace(event, tokens=(*self._settle(), *tokens)))
            case _:
                self._out.append(event)
        return self._collect()

    def _text(self, event: TextDelta) -> list[Event]:
        if event.text and not self._buffer and not self._owed:
            quick = self._quick(event)
            if quick is not None:
                return [quick]
        self._choice = event.choice
        self._buffer.push(event.text, event.tokens)
        self._read_on(event.text, 0)
        return self._collect()

    def _read_on(self, text: str, at: int) -> None:
        """Read text[at:], the unread end of the buffer."""
        while at < len(text):
            at = self._step(text, at)
            if at < 0:  # what is to be read next began in an earlier delta
                whole = self._buffer.text()
                text, at = whole, at + len(whole) - len(text)

    def _collect(self) -> list[Event]:
        out, self._out = self._out, []
        return out

    @abstractmethod
    def _quick(self, event: TextDelta) -> Event | None:
        """What the delta becomes if nothing in it needs reading; asked only while nothing is held."""

    @abstractmethod
    def _step(self, text: str, at: int) -> int:
        """Read text[at:], the unread end of the buffer, in the present state.

        Returns where to go on: how far was read, or an earlier position (negative: in an earlier delta) from which to
        read again in the state that was entered.
        """

    @abstractmethod
    def _finish(self, reason: FinishReason | None) -> None:
        """The choice ends: release what is held. reason: None where it is only interrupted."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Another part begins that is not ours: release what is held, go on as text."""

    def _read(self, text: str, at: int) -> int:
        """How much of the buffer has been read when text[at:] has not."""
        return len(self._buffer) - (len(text) - at)

    def _again(self, text: str, at: int) -> int:
        """Where to go on to read all that is held once more, in another state: negative if before this text."""
        return at - self._read(text, at)

    def _release(self, make: Callable[[int, str, tuple[Token, ...]], Event], n: int) -> None:
        """n characters of the buffer become an event."""
        if n > 0:
            text, tokens = self._buffer.take(n)
            self._out.append(make(self._choice, text, (*self._settle(), *tokens)))

    def _drop(self, n: int) -> None:
        """n characters of the buffer were syntax."""
        if n > 0:
            self._owed.extend(self._buffer.take(n, drop=True)[1])

    def _settle(self, *, call: bool = False) -> tuple[Token, ...]:
        """The tokens owed, and whatever the buffer holds without text. call: they ride on a call, and are of it."""
        owed = self._owed if call else map(_as_markup, self._owed)
        tokens = (*owed, *self._buffer.take(0)[1])
        self._owed.clear()
        return tokens

    def _with_owed(self, event: Event) -> Event:
        tokens = self._settle()
        match event:
            case _ if not tokens:
                return event
            case ReasoningDelta(choice, text, own):
                return ReasoningDelta(choice, text, (*tokens, *own))
            case RefusalDelta(choice, text, own):
                return RefusalDelta(choice, text, (*tokens, *own))
            case ToolCallDelta(choice, arguments, own):
                return ToolCallDelta(choice, arguments, (*tokens, *own))
            case ToolCallStart(choice, id, name, own, custom):
                return ToolCallStart(choice, id, name, (*tokens, *own), custom)
            case _:
                raise AssertionError(f"{type(event).__name__} carries no tokens")


class Chain:
    """Several parsers in a row; each reads the text that those before it have left."""

    def __init__(self, parsers: Sequence[Parser]) -> None:
        self._parsers = tuple(parsers)

    def feed(self, event: Event) -> list[Event]:
        events = [event]
        for parser in self._parsers:
            match events:
                case [only]:
                    events = parser.feed(only)
                case _:
                    events = [new for old in events for new in parser.feed(old)]
        return events


def chain(parsers: Iterable[Parser]) -> Parser:
    """One parser out of several; of none, one that passes everything through."""
    row = tuple(parsers)
    return row[0] if len(row) == 1 else Chain(row)
