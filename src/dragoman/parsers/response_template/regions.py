"""The parser of a response template: text into regions, regions into events.

The text is always in one region: in an explicit one until its closing delimiter, else in the implicit one (or in
none, where it means nothing) until an opening delimiter. Delimiters are found as the format says: the leftmost, of
several that begin together the longest. A region of text streams; a call streams as soon as its name is known, or
comes whole when its region closes. What cannot be read stays text, exactly as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...core.events import Event, FinishReason, ReasoningDelta, TextDelta, Token, ToolCallDelta
from ...core.syntax import ParseContext
from ..calls import Call, CallParser, HeadedCall
from ..json_text import Seen
from .content import TextContent
from .search import Matched, Program, Search
from .sinks import Closing, Collected, Make, Nothing, Sink, Verbatim, Words
from .template import Delimiter, Field, Headed, Keyed, Kind, Template

LONGEST = 1000
"""Characters that a delimiter may take; no more text is held back for one."""


class Watch:
    """What may come next in a state: the fields that may open, and the one that may close. Immutable."""

    def __init__(self, opening: Collection[Field], closing: Field | None) -> None:
        self.opening = tuple(sorted(opening, key=lambda field: field.name))
        closes = [closing.close] if closing is not None and closing.close is not None else []
        self.delimiters: list[Delimiter] = [*(field.open for field in self.opening if field.open is not None), *closes]
        self.program = Program([delimiter.node for delimiter in self.delimiters])


class Compiled:
    """A template with its searches, shared by all its parsers. Immutable."""

    def __init__(self, template: Template, added: Collection[str]) -> None:
        explicit = [field for field in template.fields if field.open is not None]
        self.implicit = template.implicit
        self.outside = Watch(explicit, self.implicit)
        self.inside = {field.name: Watch((), field) for field in explicit}
        self.anchor = Program([template.anchor.node])
        watches = (self.outside, *self.inside.values())
        self.single = frozenset(
            {text for watch in watches for one in watch.delimiters for text in one.texts} & set(added)
        )


class RegionParser(CallParser):
    """Searches for the next delimiter or, in a call that streams, reads its JSON."""

    def __init__(self, compiled: Compiled, context: ParseContext) -> None:
        super().__init__(context, compiled.single)
        self._compiled = compiled
        self._said: set[str] = set()
        self._reading_call = False
        self._prompt_end = 0
        self._field = compiled.implicit
        self._sink: Sink = self._sink_of(compiled.implicit)
        self._watch = compiled.outside
        self._search = Search(self._watch.program, 0, first=True, longest=LONGEST)
        self._begin_with(context.prompt_tail)

    def _begin_with(self, tail: str) -> None:
        """What the prompt already holds of this message decides the state, and is not said again."""
        start = 0
        search = Search(self._compiled.anchor, 0, first=True)
        while (found := search.read(tail, start) or search.close()) is not None:
            start = found.end
            search = Search(self._compiled.anchor, start, first=False)
        self._prompt_end = len(tail) - start
        self._text(TextDelta(0, tail[start:]))

    def _quick(self, event: TextDelta) -> Event | None:
        text, sink = event.text, self._sink
        if self._reading_call:
            return self._quick_call(event)
        if not isinstance(sink, Words) or not sink.flows or text[-1].isspace():
            return None
        if not self._search.passes(text):
            return None
        self._buffer.skip(len(text))
        return event if sink.make is TextDelta else sink.make(event.choice, text, event.tokens)

    def _step(self, text: str, at: int) -> int:
        if self._reading_call:
            return self._step_call(text, at)
        found = self._search.read(text, at)
        if found is None:
            self._body(self._search.pending)
            return len(text)
        return len(text) - self._delimiter(found)

    def _step_call(self, text: str, at: int) -> int:
        at, seen = self._read_call(text, at)
        if seen is Seen.MORE:
            return at
        call = self._call
        self._reading_call = False
        if not call.begun:
            self._sink = Verbatim(self._emit)
        elif call.complete:
            self._sink = Nothing(self._emit)
        else:
            self._sink = Words(self._emit, ToolCallDelta, strip=True, begun=True)
        self._search_from(self._buffer.taken)
        return at

    def _body(self, end: int) -> None:
        """The text up to this position belongs to the region."""
        in_prompt = min(end, self._prompt_end) - self._buffer.taken
        if in_prompt > 0:
            self._sink.prompt(self._buffer.take(in_prompt)[0])
        if end > self._buffer.taken:
            self._sink.body(*self._buffer.take(end - self._buffer.taken))

    def _delimiter(self, found: Matched) -> int:
        """Act on a delimiter; how much of the buffer is still to be read."""
        self._body(found.start)
        size = found.end - found.start
        text = self._buffer.peek(size)
        unread = len(self._buffer) - size
        if not self._buffer.is_mark(text, unread):
            self._body(found.start + 1)
            self._search_from(found.start + 1)
            return len(self._buffer)
        captures = {name: text[start - found.start : end - found.start] for name, start, end in found.captures}
        if found.pattern < len(self._watch.opening):
            self._sink.end(None)
            self._leave()
            self._open(self._watch.opening[found.pattern], size, captures)
        else:
            self._sink.close(Closing(*self._said_of(size), captures))
            self._leave()
            self._to_outside()
        self._search_from(found.end)
        return unread

    def _said_of(self, size: int) -> tuple[str, tuple[Token, ...]]:
        """Take a delimiter: what of it the model has written, with its tokens."""
        in_prompt = min(max(self._prompt_end - self._buffer.taken, 0), size)
        text, tokens = self._buffer.take(size)
        return text[in_prompt:], tokens

    def _leave(self) -> None:
        if self._field is not None and self._sink.said:
            self._said.add(self._field.name)

    def _to_outside(self) -> None:
        self._field = self._compiled.implicit
        self._sink = self._sink_of(self._field)
        self._watch = self._compiled.outside

    def _search_from(self, position: int) -> None:
        self._search = Search(self._watch.program, position, first=False, longest=LONGEST)

    def _open(self, field: Field, size: int, captures: Mapping[str, str]) -> None:
        self._field = field
        self._watch = self._compiled.inside[field.name]
        if field.kind is not Kind.CALLS:
            self._drop(size)
            self._sink = self._sink_of(field)
            return
        match field.shape:
            case Keyed(name, arguments):
                self._call = Call(self._tools, (name,), arguments)
                self._reading_call = True
            case Headed(capture) if captures.get(capture) in self._tools:
                name = captures[capture]
                self._call = HeadedCall(name, self._tools[name])
                self._reading_call = True
            case Headed():
                self._sink = Verbatim(self._emit)
                self._sink.body(*self._said_of(size))
            case _:
                collected = Collected(self._emit, field, self._tools, self._new_id, captures)
                collected.head(*self._said_of(size))
                self._sink = collected

    def _sink_of(self, field: Field | None) -> Sink:
        if field is None or field.kind is Kind.CALLS:
            return Nothing(self._emit)
        make: Make = TextDelta if field.kind is Kind.TEXT else ReasoningDelta
        strip = not isinstance(field.content, TextContent) or field.content.strip
        return Words(self._emit, make, strip=strip, before=field.join if field.name in self._said else "")

    def _emit(self, make: Make, text: str, tokens: Sequence[Token]) -> None:
        if text:
            self._out.append(make(self._choice, text, (*self._settle(), *tokens)))
        else:
            self._owed.extend(tokens)

    def _release(self, make: Callable[[int, str, tuple[Token, ...]], Event], n: int) -> None:
        """As the frame does it, but what stood in the prompt is not said again."""
        in_prompt = min(self._prompt_end - self._buffer.taken, n)
        if make is TextDelta and in_prompt > 0:
            self._buffer.take(in_prompt)
            n -= in_prompt
        super()._release(make, n)

    def _finish(self, reason: FinishReason | None) -> None:
        while not self._reading_call and (found := self._search.close()) is not None:
            rest = self._delimiter(found)
            if not rest:
                break
            self._read_on(self._buffer.text(), len(self._buffer) - rest)
        if not self._reading_call:
            self._body(self._buffer.taken + len(self._buffer))
            self._sink.end(reason)
        elif self._call.begun:
            self._end_call()
        else:
            self._release(TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer or self._field is not self._compiled.implicit:
            self._finish(None)
            self._reading_call = False
            self._leave()
            self._to_outside()
            self._search_from(self._buffer.taken)
