"""Tool calls between marks: one parser for every family of models whose calls stand in the text of the answer.

A frame says which marks stand around calls, a syntax how one call is written between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from msgspec import Struct

from ..core.events import Event, FinishReason, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.message import Tool
from ..core.syntax import ParseContext, Parser, Piece, Verbatim
from .base import Found, Lead
from .calls import CallParser, CallReader
from .json_text import Seen
from .marks import Marks


class Written(Struct, frozen=True):
    """The texts around calls as the template writes them, where calls are enforced.

    before, after: around all calls of an answer. open, close: around each. between: two of them.
    """

    before: str = ""
    open: str = ""
    close: str = ""
    between: str = ""
    after: str = ""


class Frame(Struct, frozen=True):
    """opens: each begins a section of calls, which `end` closes. call, call_end: around each call; "" where there is
    no such mark. listed: calls stand in a list, `[`, `,` and `]`. extra: what else may stand between two of them.

    leading: calls may also begin an answer without a mark. lead: what of the template's stands before the first mark
    and is no text. short_ids: ids of calls are nine letters and digits, as some templates demand.
    """

    opens: tuple[str, ...] = ()
    end: str = ""
    call: str = ""
    call_end: str = ""
    listed: bool = False
    extra: tuple[str, ...] = ()
    leading: bool = False
    lead: str = ""
    short_ids: bool = False

    @property
    def openers(self) -> tuple[str, ...]:
        """What begins calls in a text."""
        return tuple(filter(None, (*self.opens, self.call)))

    @property
    def inner(self) -> tuple[str, ...]:
        """What may stand before, between and behind the calls of a section."""
        brackets = ("[", ",", "]") if self.listed else ()
        marks = (*self.openers, self.call_end, self.end, *brackets, *self.extra)
        return tuple(dict.fromkeys(filter(None, marks)))

    @property
    def closers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.call_end, self.end)))


class Shape(Protocol):
    """How a call is written between the marks of its frame."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that mean something in it."""
        ...

    @property
    def ends(self) -> tuple[str, ...]:
        """Those of them that end a call."""
        ...

    def begins(self, char: str) -> bool:
        """Whether a call without a mark may begin so."""
        ...

    def reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:
        """For one call. char: where no mark precedes it, what it begins with."""
        ...

    def pieces(self, tool: Tool) -> tuple[Piece, ...]:
        """See ToolFormat.call."""
        ...


class Syntax(Protocol):
    """A shape as data. outer: marks of the frame that may end a call too."""

    def shape(self, outer: tuple[str, ...]) -> Shape: ...


class FramedFormat:
    """added: texts of the vocabulary's added tokens; a mark among them begins calls only as that one token."""

    def __init__(self, frame: Frame, syntax: Syntax, written: Written, added: Collection[str] = ()) -> None:
        self.frame = frame
        self.written = written
        self.shape = syntax.shape((*frame.openers, *frame.closers))
        self.single = frozenset((*frame.openers, *frame.closers)) & frozenset(added)
        self.inside = Marks(sorted(self.single)) if self.single else None
        leads = [frame.lead + mark for mark in frame.openers] if frame.lead else []
        self.opening = Marks([*frame.openers, *leads]) if frame.openers else None
        ends = (*self.shape.ends, *frame.closers, *frame.openers)
        self.closing = Marks([*ends, *("\n" + end for end in ends)]) if ends else None

    @property
    def markers(self) -> tuple[str, ...]:
        frame = self.frame
        return tuple(dict.fromkeys((*frame.openers, *frame.closers, *frame.extra, *self.shape.marks)))

    @property
    def openers(self) -> tuple[str, ...]:
        """The markers that begin a call and nothing else: without them there can be none."""
        return self.frame.openers

    @property
    def around(self) -> tuple[str, str]:
        return self.written.before, self.written.after

    @property
    def between(self) -> str:
        return self.written.between

    @property
    def leading(self) -> bool:
        return self.frame.leading and not self.written.before

    def call(self, tool: Tool) -> tuple[Piece, ...]:
        pieces = self.shape.pieces(tool)
        return _joined((Verbatim(self.written.open), *pieces, Verbatim(self.written.close)))

    def parser(self, context: ParseContext) -> Parser:
        return FramedParser(self, context)


def _joined(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Texts beside each other are one; none is empty."""
    out: list[Piece] = []
    for piece in pieces:
        match piece, out[-1] if out else None:
            case Verbatim(text), Verbatim(before):
                out[-1] = Verbatim(before + text)
            case Verbatim(""), _:
                pass
            case _:
                out.append(piece)
    return tuple(out)


class FramedParser(CallParser):
    """Expecting marks (before the first call, and around each), in text, in a call, in a call that is malformed.

    Until its name is known a call is held, with the marks before it; from then on its arguments stream. What turns
    out not to be a call of a declared tool is text, exactly as it was written.
    """

    def __init__(self, format: FramedFormat, context: ParseContext) -> None:
        super().__init__(context, format.single)
        self._format = format
        self._frame = format.frame
        self._state: Callable[[FramedParser, str, int], int] = FramedParser._expecting
        self._lead = Lead(format.frame.openers)
        self._inside = False  # of a section, where more marks may stand
        self._good = False  # the last thing was a call, so that white space and marks behind it are no text
        self._sure = 0  # characters of the buffer that are marks
        self._search = 0
        if self._frame.leading:
            self._expect(inside=True)

    def _quick(self, event: TextDelta) -> Event | None:
        opening = self._format.opening
        if self._state is FramedParser._in_text and not self._search:
            return event if opening is None or not opening.occurs(event.text) else None
        inside = self._format.inside
        if self._state is not FramedParser._in_call or (inside is not None and inside.occurs(event.text)):
            return None
        return self._quick_call(event)

    def _step(self, text: str, at: int) -> int:
        return self._state(self, text, at)

    def _expect(self, *, inside: bool) -> None:
        self._inside = inside
        self._lead = Lead(self._frame.inner if inside else self._frame.openers)
        self._state = FramedParser._expecting

    def _expecting(self, text: str, at: int) -> int:
        at, found = self._lead.read(text, at)
        if found is Found.MORE:
            return at
        if found is Found.MARK and self._is_mark(self._lead.mark, len(text) - at):
            self._sure = self._read(text, at)
            return self._marked(self._lead.mark, at)
        if found is Found.OTHER and self._may_begin(text[at]):
            return self._begin_call(at, text[at])
        return self._no_more(text, at)

    def _is_mark(self, mark: str, unread: int) -> bool:
        """A mark that closes may be spelled out: behind a call it can be nothing else."""
        return mark not in self._frame.openers or self._buffer.is_mark(mark, unread)

    def _may_begin(self, char: str) -> bool:
        """Whether a call that no mark precedes begins here: one of a list needs the list."""
        if not self._inside or self._frame.call or self._lead.matched:
            return False
        return bool(self._sure or self._good or not self._frame.listed) and self._format.shape.begins(char)

    def _marked(self, mark: str, at: int) -> int:
        """A mark of the frame has been read."""
        frame = self._frame
        if mark == frame.call:
            return self._begin_call(at)
        alone = not (frame.opens or frame.listed or frame.leading)
        last = frame.end or ("]" if frame.listed else "")
        if mark == last or (mark == frame.call_end and alone):
            self._leave()
        else:
            self._expect(inside=True)
        return at

    def _leave(self) -> None:
        """The section has ended. One without calls is no text either."""
        marks = self._buffer.peek(self._sure)
        is_empty = (
            bool(self._frame.end) and marks.endswith(self._frame.end) and marks.lstrip().startswith(self._frame.opens)
        )
        if self._good or is_empty:
            self._drop(self._sure)
        else:
            self._release(TextDelta, self._sure)
        self._sure = 0
        if self._good:
            self._expect(inside=False)
        else:
            self._to_text()

    def _no_more(self, text: str, at: int) -> int:
        """No mark and no call stands here: what the marks have not used up is text."""
        again = self._again(text, at) + self._sure
        if self._good:
            self._drop(self._sure)
        else:
            self._release(TextDelta, self._sure)
        self._to_text()
        return again

    def _to_text(self) -> None:
        self._state = FramedParser._in_text
        self._search = self._sure = 0
        self._good = self._inside = False

    def _in_text(self, text: str, at: int) -> int:
        opening = self._format.opening
        if opening is None:
            self._release(TextDelta, len(self._buffer))
            return len(text)
        end, self._search = opening.search(text, at, self._search)
        if end < 0:
            self._release(TextDelta, len(self._buffer) - opening.held[self._search])
            return len(text)
        size = opening.ending[self._search]
        start = self._read(text, end) - size
        mark = opening.text[self._search].removeprefix(self._frame.lead)
        if not self._buffer.is_mark(mark, len(text) - end):
            return end
        self._release(TextDelta, start)
        self._search = 0
        self._sure = size
        return self._marked(mark, end)

    def _begin_call(self, at: int, char: str = "") -> int:
        self._call = self._format.shape.reader(self._tools, char)
        self._state = FramedParser._in_call
        self._inside = True
        return at

    def _in_call(self, text: str, at: int) -> int:
        call = self._call
        before = -1 if self._format.inside is None else self._buffer.first_mark(len(text) - at)
        if before < 0:
            at, seen = self._read_call(text, at)
        else:
            # A token that is a mark ends the call wherever it stands, also within a string of broken arguments.
            at, seen = self._read_call(text, at, at + before)
            if seen is Seen.MORE and not call.awaits_mark and self._cut_call(self._read(text, at)):
                return at
            if seen is Seen.MORE:
                at, seen = self._read_call(text, at)
        if seen is Seen.MORE:
            return at
        if call.begun and (seen is Seen.CLOSE or call.complete):
            self._behind_call(call)
        elif call.begun:
            self._state, self._search = FramedParser._in_malformed, 0
        elif seen is Seen.CLOSE and not self._frame.call:
            self._good = False
            self._sure = 0
            self._expect(inside=True)
        else:
            self._to_text()
        return at

    def _cut_call(self, n: int) -> bool:
        """The call ends before it is whole, n characters into the buffer; False if it has no name yet."""
        call = self._call
        call.end()
        if call.begun:
            self._stream(call, n)
            self._started, self._good, self._sure = False, True, 0
            self._expect(inside=True)
        return call.begun

    def _behind_call(self, call: CallReader) -> None:
        frame = self._frame
        self._good, self._sure = True, 0
        if call.ended_by:
            self._marked(call.ended_by, 0)
        else:
            self._expect(inside=bool(frame.opens or frame.listed or frame.leading or frame.call_end))

    def _in_malformed(self, text: str, at: int) -> int:
        """The arguments are what is there, up to a closing mark."""
        closing = self._format.closing
        if closing is None:
            self._release(ToolCallDelta, len(self._buffer))
            return len(text)
        end, self._search = closing.search(text, at, self._search)
        if end < 0:
            self._release(ToolCallDelta, len(self._buffer) - closing.held[self._search])
            return len(text)
        size = closing.ending[self._search]
        start = self._read(text, end) - size
        mark = closing.text[self._search].removeprefix("\n")
        if mark in self._frame.openers and not self._buffer.is_mark(mark, len(text) - end):
            return end
        self._release(ToolCallDelta, start)
        self._drop(size)
        self._good, self._sure = True, 0
        if mark in self._frame.closers or mark in self._frame.openers:
            self._marked(mark, end)
        else:
            self._expect(inside=True)
        return end

    def _start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:
        start = super()._start(choice, text, tokens)
        if self._frame.short_ids and isinstance(start, ToolCallStart) and self._call.id is None:
            return ToolCallStart(choice, _short(start.id), start.name, tokens, start.custom)
        return start

    def _finish(self, reason: FinishReason | None) -> None:
        held = len(self._buffer)
        if self._state is FramedParser._in_call and not self._call.begun and reason is FinishReason.STOP:
            self._call.end()
        if self._state is FramedParser._in_call and self._call.begun:
            self._end_call()
        elif self._state is FramedParser._in_malformed:
            self._release(ToolCallDelta, held)
        elif self._state is FramedParser._expecting and self._good and (self._inside or not self._lead.matched):
            self._drop(held)
        else:
            self._release(TextDelta, held)

    def _interrupt(self) -> None:
        if self._buffer or self._state not in (FramedParser._expecting, FramedParser._in_text):
            self._finish(None)
            self._to_text()


def _short(id: str) -> str:
    """Nine letters and digits of an id, its last ones, where it differs most."""
    return "".join(char for char in id if char.isascii() and char.isalnum())[-9:].rjust(9, "0")
