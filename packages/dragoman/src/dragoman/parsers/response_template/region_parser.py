"""The parser of a response template, which splits text into regions.

Text between an opening delimiter and its closing delimiter is in that field's region.
All other text is in the region of the implicit field, the one without an opening
delimiter, and is discarded if the template has no such field. The leftmost delimiter
wins, and the longest of several that begin together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ...core.events import (
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Token,
    ToolCallDelta,
)
from ...core.syntax import (
    ParseContext,
)
from ..call_parser import CallParser
from ..json_call_reader import ArgumentsReader, JsonCallReader
from ..json_scanner import ReadStatus
from ..stream_regex import PatternMatch, PatternSearch, Program
from ..text_buffer import MarkerTokens
from .content import TextContent
from .sinks import (
    BufferedCallSink,
    ClosingDelimiter,
    DiscardSink,
    EventFactory,
    Sink,
    TextSink,
    VerbatimSink,
)
from .template import (
    Delimiter,
    FieldKind,
    KeyedCallLayout,
    NamedByDelimiterLayout,
    ResponseTemplate,
    TemplateField,
)

MAX_DELIMITER_LENGTH = 1000
"""Maximum characters of a delimiter, and therefore of the text that is held back for
one.
"""


class DelimiterSet:
    """The delimiters that are searched for in one state. Immutable.

    opening_fields: the fields whose region may open.
    closing_field: the field whose region may close, if any.
    """

    def __init__(
        self, opening_fields: Collection[TemplateField], closing_field: TemplateField | None
    ) -> None:
        self.opening_fields = tuple(sorted(opening_fields, key=lambda field: field.name))
        close_delimiters = (
            [closing_field.close]
            if closing_field is not None and closing_field.close is not None
            else []
        )
        self.delimiters: list[Delimiter] = [
            *(field.open for field in self.opening_fields if field.open is not None),
            *close_delimiters,
        ]
        self.program = Program([delimiter.node for delimiter in self.delimiters])


class CompiledTemplate:
    """A template with its compiled searches, shared by all its parsers. Immutable."""

    def __init__(self, template: ResponseTemplate, added_tokens: Collection[str]) -> None:
        explicit = [field for field in template.fields if field.open is not None]
        self.implicit = template.implicit
        self.outside_set = DelimiterSet(explicit, self.implicit)
        self.region_sets = {field.name: DelimiterSet((), field) for field in explicit}
        self.anchor = Program([template.anchor.node])
        delimiter_sets = (self.outside_set, *self.region_sets.values())
        self.markers = MarkerTokens(
            {
                text
                for delimiter_set in delimiter_sets
                for delimiter in delimiter_set.delimiters
                for text in delimiter.texts
            }
            & set(added_tokens)
        )


class RegionParser(CallParser):
    """Parses a response: searches for the next delimiter or, in a call that streams,
    reads its JSON.
    """

    def __init__(self, compiled: CompiledTemplate, context: ParseContext) -> None:
        super().__init__(context, compiled.markers)
        self._compiled = compiled
        self._emitted_fields: set[str] = set()
        self._in_call = False
        self._prompt_end = 0
        self._field = compiled.implicit
        self._sink: Sink = self._build_sink(compiled.implicit)
        self._delimiters = compiled.outside_set
        self._search = PatternSearch(
            self._delimiters.program, 0, at_start=True, max_length=MAX_DELIMITER_LENGTH
        )
        # Set the state from the part of the message that is in the prompt; its text is
        # not emitted.
        prompt_tail = context.prompt_tail
        start = 0
        search = PatternSearch(self._compiled.anchor, 0, at_start=True)
        while (match := search.read(prompt_tail, start) or search.close()) is not None:
            start = match.end
            search = PatternSearch(self._compiled.anchor, start, at_start=False)
        self._prompt_end = len(prompt_tail) - start
        self._feed_text(TextDelta(0, prompt_tail[start:]))

    def _fast_path(self, event: TextDelta) -> Event | None:
        text = event.text
        sink = self._sink
        if self._in_call:
            return self._call_fast_path(event)
        # Trailing white space may belong to a delimiter or be stripped, so it cannot be
        # passed on yet.
        if not isinstance(sink, TextSink) or not sink.is_transparent or text[-1].isspace():
            return None
        if not self._search.try_skip(text):
            return None
        self._buffer.skip(len(text))
        return (
            event
            if sink.event_factory is TextDelta
            else sink.event_factory(event.choice, text, event.tokens)
        )

    def _step(self, text: str, pos: int) -> int:
        if self._in_call:
            return self._parse_call(text, pos)
        match = self._search.read(text, pos)
        if match is None:
            self._feed_region(self._search.pending)
            return len(text)
        return len(text) - self._handle_delimiter(match)

    def _parse_call(self, text: str, pos: int) -> int:
        pos, status = self._read_call(text, pos)
        if status is ReadStatus.MORE:
            return pos
        call = self._call
        self._in_call = False
        if not call.has_begun:
            self._sink = VerbatimSink(self._emit_event)
        elif call.is_complete:
            self._sink = DiscardSink(self._emit_event)
        else:
            self._sink = TextSink(self._emit_event, ToolCallDelta, strip=True, has_begun=True)
        self._search_from(self._buffer.start)
        return pos

    def _feed_region(self, end: int) -> None:
        """Pass the text up to this position to the region's sink."""
        in_prompt = min(end, self._prompt_end) - self._buffer.start
        if in_prompt > 0:
            self._sink.feed_prompt(self._buffer.pop(in_prompt)[0])
        if end > self._buffer.start:
            self._sink.feed(*self._buffer.pop(end - self._buffer.start))

    def _handle_delimiter(self, match: PatternMatch) -> int:
        """Handle a delimiter. Return how many characters of the buffer are still to be
        read.
        """
        self._feed_region(match.start)
        length = match.end - match.start
        text = self._buffer.peek(length)
        unread = len(self._buffer) - length
        # The model wrote the delimiter in ordinary tokens, so it is text about the
        # delimiter. The search continues after its first character.
        if not self._buffer.is_marker(text, unread):
            self._feed_region(match.start + 1)
            self._search_from(match.start + 1)
            return len(self._buffer)
        captures = {
            name: text[start - match.start : end - match.start]
            for name, start, end in match.captures
        }
        if match.pattern < len(self._delimiters.opening_fields):
            self._sink.end(None)
            self._record_emitted()
            self._open_region(self._delimiters.opening_fields[match.pattern], length, captures)
        else:
            self._sink.close(ClosingDelimiter(*self._take_delimiter(length), captures))
            self._record_emitted()
            self._close_region()
        self._search_from(match.end)
        return unread

    def _take_delimiter(self, length: int) -> tuple[str, tuple[Token, ...]]:
        """Consume a delimiter. Return the part that the model wrote, not the part in
        the prompt, with its tokens.
        """
        in_prompt = min(max(self._prompt_end - self._buffer.start, 0), length)
        text, tokens = self._buffer.pop(length)
        return text[in_prompt:], tokens

    def _record_emitted(self) -> None:
        if self._field is not None and self._sink.has_output:
            self._emitted_fields.add(self._field.name)

    def _close_region(self) -> None:
        self._field = self._compiled.implicit
        self._sink = self._build_sink(self._field)
        self._delimiters = self._compiled.outside_set

    def _search_from(self, position: int) -> None:
        self._search = PatternSearch(
            self._delimiters.program, position, at_start=False, max_length=MAX_DELIMITER_LENGTH
        )

    def _open_region(self, field: TemplateField, length: int, captures: Mapping[str, str]) -> None:
        self._field = field
        self._delimiters = self._compiled.region_sets[field.name]
        if field.kind is not FieldKind.CALLS:
            self._drop(length)
            self._sink = self._build_sink(field)
            return
        match field.call_layout:
            case KeyedCallLayout(name, arguments):
                self._call = JsonCallReader(self._tools, (name,), arguments)
                self._in_call = True
            # The opening delimiter names the function, so the call starts before its
            # arguments.
            case NamedByDelimiterLayout(capture) if captures.get(capture) in self._tools:
                name = captures[capture]
                self._call = ArgumentsReader(name, self._tools[name])
                self._in_call = True
            case NamedByDelimiterLayout():
                self._sink = VerbatimSink(self._emit_event)
                self._sink.feed(*self._take_delimiter(length))
            case _:
                call_sink = BufferedCallSink(
                    self._emit_event, field, self._tools, self._new_id, captures
                )
                call_sink.set_opening(*self._take_delimiter(length))
                self._sink = call_sink

    def _build_sink(self, field: TemplateField | None) -> Sink:
        if field is None or field.kind is FieldKind.CALLS:
            return DiscardSink(self._emit_event)
        build_event: EventFactory = TextDelta if field.kind is FieldKind.TEXT else ReasoningDelta
        strip = not isinstance(field.content, TextContent) or field.content.strip
        return TextSink(
            self._emit_event,
            build_event,
            strip=strip,
            separator=field.join if field.name in self._emitted_fields else "",
        )

    def _emit_event(self, build_event: EventFactory, text: str, tokens: Sequence[Token]) -> None:
        if text:
            self._events.append(
                build_event(self._choice, text, (*self._take_pending_tokens(), *tokens))
            )
        else:
            self._pending_tokens.extend(tokens)

    def _emit_buffered(
        self, build_event: Callable[[int, str, tuple[Token, ...]], Event], n: int
    ) -> None:
        """Emit buffered text like the base class, but without text that is in the
        prompt.
        """
        in_prompt = min(self._prompt_end - self._buffer.start, n)
        if build_event is TextDelta and in_prompt > 0:
            self._buffer.pop(in_prompt)
            n -= in_prompt
        super()._emit_buffered(build_event, n)

    def _finish(self, reason: FinishReason | None) -> None:
        while not self._in_call and (match := self._search.close()) is not None:
            unread = self._handle_delimiter(match)
            if not unread:
                break
            self._consume(self._buffer.text(), len(self._buffer) - unread)
        if not self._in_call:
            self._feed_region(self._buffer.start + len(self._buffer))
            self._sink.end(reason)
        elif self._call.has_begun:
            self._end_call(reason)
        else:
            self._emit_buffered(TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer or self._field is not self._compiled.implicit:
            self._finish(None)
            self._in_call = False
            self._record_emitted()
            self._close_region()
            self._search_from(self._buffer.start)
