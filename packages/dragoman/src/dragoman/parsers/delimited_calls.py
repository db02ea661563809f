"""Tool calls between delimiters: one parser for every model family that writes calls in
the text of its response.

`Delimiters` are the texts around calls; a syntax defines how one call is written
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ..core.events import Event, FinishReason, TextDelta, Token, ToolCallDelta, ToolCallStart
from ..core.message import Tool
from ..core.syntax import LiteralText, ParseContext, Parser, SyntaxPiece
from .aho_corasick import AhoCorasick
from .call_parser import CallParser
from .call_reader import CallReader
from .json_calls import JsonObjectSyntax
from .json_scanner import ReadStatus
from .prefix_matcher import PrefixMatcher, PrefixResult
from .text_buffer import MarkerTokens

_MAX_SEARCHED_NAMES = 64
"""Maximum declared functions whose calls are recognized by what follows a marker."""


class CallTemplate(Struct, frozen=True):
    """The texts around enforced calls, as the chat template writes them.

    prefix, suffix: around all calls of a response.
    call_prefix, call_suffix: around each call.
    separator: between two calls.
    """

    prefix: str = ""
    call_prefix: str = ""
    call_suffix: str = ""
    separator: str = ""
    suffix: str = ""


class Delimiters(Struct, frozen=True):
    """The delimiters of a format.

    section_starts: delimiters that begin a section of calls.
    section_end: delimiter that ends the section; "" for none.
    call_start, call_end: delimiters around each call; "" for none.
    is_list: the calls form a list with `[`, `,` and `]`.
    fillers: other texts that are allowed between two calls.
    leading: a response may also begin with calls without a delimiter.
    leading_text: the template's text before the first delimiter, which is not content.
    has_short_ids: call ids are nine letters and digits, as some templates require.
    """

    section_starts: tuple[str, ...] = ()
    section_end: str = ""
    call_start: str = ""
    call_end: str = ""
    is_list: bool = False
    fillers: tuple[str, ...] = ()
    leading: bool = False
    leading_text: str = ""
    has_short_ids: bool = False

    @property
    def call_openers(self) -> tuple[str, ...]:
        """The markers that begin calls in a text."""
        return tuple(filter(None, (*self.section_starts, self.call_start)))

    @property
    def inner_markers(self) -> tuple[str, ...]:
        """The markers allowed before, between and after the calls of a section."""
        brackets = ("[", ",", "]") if self.is_list else ()
        markers = (*self.call_openers, self.call_end, self.section_end, *brackets, *self.fillers)
        return tuple(dict.fromkeys(filter(None, markers)))

    @property
    def closers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.call_end, self.section_end)))


class CallSyntax(Protocol):
    """The syntax of a call between its delimiters."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts with a special meaning in this syntax."""
        ...

    @property
    def end_markers(self) -> tuple[str, ...]:
        """The markers that end a call."""
        ...

    def can_begin_with(self, char: str) -> bool:
        """Whether a call without a delimiter may begin with this character."""
        ...

    def list_heads(self, name: str) -> Sequence[str]:
        """Return texts with which a call of this function begins, and no other text."""
        ...

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:
        """Build the reader of one call. char: its first character, where no delimiter
        precedes it.
        """
        ...

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        """See ToolFormat.build_call_syntax."""
        ...


class CallSyntaxSpec(Protocol):
    """A call syntax as data. `openers` and `closers` are the delimiters, which may also
    end a call.
    """

    def compile(self, openers: tuple[str, ...], closers: tuple[str, ...]) -> CallSyntax: ...


class DelimitedCallFormat:
    """A tool call format: delimiters, the syntax of a call between them, and the
    template for enforced calls.

    added_tokens: texts of the vocabulary's added tokens; a delimiter among them counts
        only as that single token.
    """

    def __init__(
        self,
        delimiters: Delimiters,
        spec: CallSyntaxSpec,
        template: CallTemplate,
        added_tokens: Collection[str] = (),
    ) -> None:
        self.delimiters = delimiters
        self.template = template
        self.call_syntax = spec.compile(delimiters.call_openers, delimiters.closers)
        # Models of every family also write the JSON of a call between their delimiters.
        self._json_syntax = JsonObjectSyntax(is_bare=delimiters.leading)
        single_tokens = frozenset((*delimiters.call_openers, *delimiters.closers)) & frozenset(
            added_tokens
        )
        self.marker_tokens = MarkerTokens(single_tokens)
        # Only where delimiters are single tokens: as ordinary text they may occur in
        # the arguments, inside a string.
        self.inside = AhoCorasick(sorted(single_tokens)) if single_tokens else None
        # The longest match wins, so the template's own text in front of a delimiter is
        # consumed with it.
        prefixed_starts = (
            [delimiters.leading_text + marker for marker in delimiters.call_openers]
            if delimiters.leading_text
            else []
        )
        self.start_patterns = (
            AhoCorasick([*delimiters.call_openers, *prefixed_starts])
            if delimiters.call_openers
            else None
        )
        end_markers = (*self.call_syntax.end_markers, *delimiters.closers, *delimiters.call_openers)
        # The newline before a closing delimiter is the template's, not part of
        # malformed arguments.
        self.end_patterns = (
            AhoCorasick([*end_markers, *("\n" + end for end in end_markers)])
            if end_markers
            else None
        )

    @property
    def markers(self) -> tuple[str, ...]:
        delimiters = self.delimiters
        return tuple(
            dict.fromkeys(
                (
                    *delimiters.call_openers,
                    *delimiters.closers,
                    *delimiters.fillers,
                    *self.call_syntax.markers,
                )
            )
        )

    @property
    def call_openers(self) -> tuple[str, ...]:
        """The markers that begin a call and nothing else: without them there can be no
        call.
        """
        return self.delimiters.call_openers

    @property
    def section_delimiters(self) -> tuple[str, str]:
        return self.template.prefix, self.template.suffix

    @property
    def call_separator(self) -> str:
        return self.template.separator

    @property
    def has_unmarked_calls(self) -> bool:
        return self.delimiters.leading and not self.template.prefix

    def list_call_heads(self, names: Collection[str], opener: str) -> tuple[str, ...]:
        """Return texts that follow this marker in a call of one of these functions, and
        nowhere else.
        """
        delimiters = self.delimiters
        starts = ("[", "[\n    ", "[ ", "") if delimiters.is_list else ("",)
        if opener != delimiters.call_start and delimiters.call_start:
            starts = (delimiters.call_start,)
        syntaxes = (self.call_syntax, self._json_syntax)
        return tuple(
            start + head
            for name in sorted(names)[:_MAX_SEARCHED_NAMES]
            for syntax in syntaxes
            for head in syntax.list_heads(name)
            for start in (starts if syntax is self.call_syntax else (*starts, ""))
        )

    def can_begin_with(self, char: str) -> bool:
        """Whether a call without a delimiter may begin with this character."""
        return char == "{" or self.call_syntax.can_begin_with(char)

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:
        """Build the reader of one call, whose first character is `char`."""
        is_json = char == "{" and not self.call_syntax.can_begin_with(char)
        return (self._json_syntax if is_json else self.call_syntax).build_reader(tools, char)

    def build_call_syntax(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        prefix = LiteralText(self.template.call_prefix)
        suffix = LiteralText(self.template.call_suffix)
        # Adjacent literals are merged, and empty ones removed.
        merged: list[SyntaxPiece] = []
        for piece in (prefix, *self.call_syntax.build_pieces(tool), suffix):
            match piece, merged[-1] if merged else None:
                case LiteralText(text, keywords), LiteralText(previous, previous_keywords):
                    merged[-1] = LiteralText(previous + text, (*previous_keywords, *keywords))
                # An empty literal with keywords stays: they are reported to the client
                # as unenforced.
                case LiteralText("", ()), _:
                    pass
                case _:
                    merged.append(piece)
        return tuple(merged)

    def create_parser(self, context: ParseContext) -> Parser:
        return DelimitedCallParser(self, context)


class DelimitedCallParser(CallParser):
    """Parses the calls of a `DelimitedCallFormat`.

    States: expecting delimiters (before the first call, and around each), in text, in a
    call, in a malformed call. A call is buffered with its delimiters until its name is
    known; then its arguments stream. What turns out not to be a call of a declared tool
    is released as text, unchanged.
    """

    def __init__(self, format: DelimitedCallFormat, context: ParseContext) -> None:
        super().__init__(context, format.marker_tokens)
        self._format = format
        self._delimiters = format.delimiters
        self._state: Callable[[DelimitedCallParser, str, int], int] = (
            DelimitedCallParser._parse_marker
        )
        self._prefix_matcher = PrefixMatcher(format.delimiters.call_openers)
        self._in_section = False  # Inside a section, where more delimiters may follow.
        self._follows_call = (
            False  # A call came last, so white space and delimiters after it are not text.
        )
        self._is_open = False  # That call has ended, but may continue.
        self._marker_length = 0  # Characters of the buffer that are delimiters.
        self._search_state = 0
        if self._delimiters.leading:
            self._expect_marker(in_section=True)

    def _fast_path(self, event: TextDelta) -> Event | None:
        start_patterns = self._format.start_patterns
        # A search state other than 0 means that the last delta ended in what may be the
        # beginning of a delimiter.
        if self._state is DelimitedCallParser._parse_text and not self._search_state:
            return (
                event
                if start_patterns is None or not start_patterns.can_start_in(event.text)
                else None
            )
        inside = self._format.inside
        if self._state is not DelimitedCallParser._parse_call or (
            inside is not None and inside.can_start_in(event.text)
        ):
            return None
        return self._call_fast_path(event)

    def _step(self, text: str, pos: int) -> int:
        return self._state(self, text, pos)

    def _expect_marker(self, *, in_section: bool) -> None:
        self._in_section = in_section
        delimiters = self._delimiters
        markers = delimiters.inner_markers if in_section else delimiters.call_openers
        # After a call, models repeat its end.
        repeated = delimiters.closers if self._follows_call else ()
        resuming = self._call.resuming_markers if self._is_open else ()
        self._prefix_matcher = PrefixMatcher(tuple(dict.fromkeys((*markers, *repeated, *resuming))))
        self._state = DelimitedCallParser._parse_marker

    def _parse_marker(self, text: str, pos: int) -> int:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.INCOMPLETE:
            return pos
        if self._is_open:
            if (
                result is PrefixResult.MATCHED
                and self._prefix_matcher.marker in self._call.resuming_markers
            ):
                return self._resume_call(text, pos)
            self._close_call()
        # A closing delimiter may consist of several tokens: after a call it is
        # unambiguous.
        if result is PrefixResult.MATCHED and (
            self._prefix_matcher.marker not in self._delimiters.call_openers
            or self._buffer.is_marker(self._prefix_matcher.marker, len(text) - pos)
        ):
            self._marker_length = self._count_consumed(text, pos)
            return self._handle_marker(self._prefix_matcher.marker, pos)
        # A call without a delimiter; in a list the bracket is required, and where calls
        # have their own delimiter, the section's.
        needs_marker = self._delimiters.is_list or self._delimiters.call_start
        may_begin_call = (
            result is PrefixResult.NO_MATCH
            and self._in_section
            and not self._prefix_matcher.matched
            and (
                self._marker_length
                or not needs_marker
                or (self._follows_call and not self._delimiters.call_start)
            )
        )
        if may_begin_call and (
            text[pos] == "{"
            if self._delimiters.call_start
            else self._format.can_begin_with(text[pos])
        ):
            return self._begin_call(pos, text[pos])
        # White space that was read while a delimiter was expected is text after all,
        # and is read again as text.
        resume_pos = self._rewind(text, pos) + self._marker_length
        if self._follows_call:
            self._drop(self._marker_length)
        else:
            self._emit_buffered(TextDelta, self._marker_length)
        self._switch_to_text()
        return resume_pos

    def _resume_call(self, text: str, pos: int) -> int:
        """Continue the last call, as its end was none."""
        self._drop(self._count_consumed(text, pos))
        _, status = self._call.read(self._prefix_matcher.marker, 0)
        if status is ReadStatus.MORE:
            self._is_open = False
            self._has_started = True
            self._state = DelimitedCallParser._parse_call
        else:
            self._expect_marker(in_section=self._in_section)
        return pos

    def _close_call(self) -> None:
        """End the last call, since no more of its arguments follow."""
        if self._is_open:
            self._is_open = False
            self._has_started = True
            self._call.finish(is_truncated=False)
            self._stream_arguments(self._call, 0)
            self._has_started = False

    def _handle_marker(self, marker: str, pos: int) -> int:
        """Handle a delimiter that has been read. Return the position after it."""
        delimiters = self._delimiters
        if marker == delimiters.call_start:
            self._expect_call()
            return pos
        # Formats without a section end a call with its own delimiter; only another
        # opening delimiter begins the next.
        is_standalone = not (delimiters.section_starts or delimiters.is_list or delimiters.leading)
        section_end = delimiters.section_end or ("]" if delimiters.is_list else "")
        if marker == section_end or (marker == delimiters.call_end and is_standalone):
            marks = self._buffer.peek(self._marker_length)
            # Some models write an empty section when they call no tool.
            is_empty = (
                bool(self._delimiters.section_end)
                and marks.endswith(self._delimiters.section_end)
                and marks.lstrip().startswith(self._delimiters.section_starts)
            )
            if self._follows_call or is_empty:
                self._drop(self._marker_length)
            else:
                self._emit_buffered(TextDelta, self._marker_length)
            self._marker_length = 0
            if self._follows_call:
                self._expect_marker(in_section=False)
            else:
                self._switch_to_text()
        else:
            self._expect_marker(in_section=True)
        return pos

    def _switch_to_text(self) -> None:
        self._state = DelimitedCallParser._parse_text
        self._search_state = self._marker_length = 0
        self._follows_call = self._in_section = False

    def _parse_text(self, text: str, pos: int) -> int:
        start_patterns = self._format.start_patterns
        if start_patterns is None:
            self._emit_buffered(TextDelta, len(self._buffer))
            return len(text)
        end, self._search_state = start_patterns.search(text, pos, self._search_state)
        if end < 0:
            self._emit_buffered(
                TextDelta, len(self._buffer) - start_patterns.pending_lengths[self._search_state]
            )
            return len(text)
        size = start_patterns.match_lengths[self._search_state]
        start = self._count_consumed(text, end) - size
        # The match may include the template's text before the marker; a token of the
        # vocabulary is the marker alone.
        marker = start_patterns.match_texts[self._search_state].removeprefix(
            self._delimiters.leading_text
        )
        if not self._buffer.is_marker(marker, len(text) - end):
            return end
        self._emit_buffered(TextDelta, start)
        self._search_state = 0
        self._marker_length = size
        return self._handle_marker(marker, end)

    def _expect_call(self) -> None:
        self._prefix_matcher = PrefixMatcher(self._delimiters.call_openers)
        self._state = DelimitedCallParser._parse_call_start

    def _parse_call_start(self, text: str, pos: int) -> int:
        """Read the start of a call; the model may repeat the delimiter before it."""
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.INCOMPLETE:
            return pos
        if result is PrefixResult.MATCHED and self._buffer.is_marker(
            self._prefix_matcher.marker, len(text) - pos
        ):
            self._expect_call()
            return pos
        return self._begin_call(pos - self._prefix_matcher.matched, text[pos : pos + 1])

    def _begin_call(self, pos: int, char: str = "") -> int:
        self._record_skipped_text()
        self._call = self._format.build_reader(self._tools, char)
        self._state = DelimitedCallParser._parse_call
        self._in_section = True
        return pos

    def _parse_call(self, text: str, pos: int) -> int:
        call = self._call
        mark_offset = (
            -1 if self._format.inside is None else self._buffer.first_mark(len(text) - pos)
        )
        if mark_offset < 0:
            pos, status = self._read_call(text, pos)
        else:
            # A delimiter token ends the call anywhere, even inside a string of
            # malformed arguments.
            pos, status = self._read_call(text, pos, pos + mark_offset)
            # Where the reader itself expects a delimiter, the token belongs to the call
            # and does not cut it short.
            if status is ReadStatus.MORE and not call.awaits_delimiter:
                call.finish(is_truncated=False)
                if call.has_begun:
                    self._stream_arguments(call, self._count_consumed(text, pos))
                    self._has_started = False
                    self._follows_call = True
                    self._marker_length = 0
                    self._expect_marker(in_section=True)
                    return pos
            if status is ReadStatus.MORE:
                pos, status = self._read_call(text, pos)
        if status is not ReadStatus.MORE:
            self._leave_call(status)
        return pos

    def _leave_call(self, status: ReadStatus) -> None:
        """Continue after a call, which is complete or cannot be read."""
        call = self._call
        delimiters = self._delimiters
        if call.has_begun and (status is ReadStatus.CLOSE or call.is_complete):
            self._follows_call = True
            self._is_open = bool(call.resuming_markers)
            self._marker_length = 0
            if call.end_marker:
                self._handle_marker(call.end_marker, 0)
            else:
                has_section = delimiters.section_starts or delimiters.is_list or delimiters.leading
                self._expect_marker(in_section=bool(has_section or delimiters.call_end))
        # The client already has the call's name, so what follows is sent as its
        # arguments, even if malformed.
        elif call.has_begun:
            self._state = DelimitedCallParser._parse_malformed_call
            self._search_state = 0
        elif status is ReadStatus.CLOSE and call.end_marker in delimiters.call_openers:
            self._switch_to_text()
            self._handle_marker(call.end_marker, 0)
        elif status is ReadStatus.CLOSE and not delimiters.call_start:
            self._follows_call = False
            self._marker_length = 0
            self._expect_marker(in_section=True)
        else:
            self._switch_to_text()

    def _parse_malformed_call(self, text: str, pos: int) -> int:
        """Stream the text up to a closing delimiter as arguments, unparsed."""
        end_patterns = self._format.end_patterns
        if end_patterns is None:
            self._emit_buffered(ToolCallDelta, len(self._buffer))
            return len(text)
        end, self._search_state = end_patterns.search(text, pos, self._search_state)
        if end < 0:
            self._emit_buffered(
                ToolCallDelta, len(self._buffer) - end_patterns.pending_lengths[self._search_state]
            )
            return len(text)
        size = end_patterns.match_lengths[self._search_state]
        start = self._count_consumed(text, end) - size
        marker = end_patterns.match_texts[self._search_state].removeprefix("\n")
        if marker in self._delimiters.call_openers and not self._buffer.is_marker(
            marker, len(text) - end
        ):
            return end
        self._emit_buffered(ToolCallDelta, start)
        self._drop(size)
        self._follows_call = True
        self._marker_length = 0
        if marker in self._delimiters.closers or marker in self._delimiters.call_openers:
            self._handle_marker(marker, end)
        else:
            self._expect_marker(in_section=True)
        return end

    def _build_start(self, choice: int, text: str, tokens: tuple[Token, ...]) -> Event:
        start = super()._build_start(choice, text, tokens)
        if (
            self._delimiters.has_short_ids
            and isinstance(start, ToolCallStart)
            and self._call.id is None
        ):
            # The last nine letters and digits of an id, where ids differ most.
            id = "".join(char for char in start.id if char.isascii() and char.isalnum())[-9:].rjust(
                9, "0"
            )
            return ToolCallStart(choice, id, start.name, tokens, start.custom)
        return start

    def _finish(self, reason: FinishReason | None) -> None:
        self._release_buffer(reason)
        self._record_skipped_text()

    def _release_buffer(self, reason: FinishReason | None) -> None:
        self._close_call()
        buffered_length = len(self._buffer)
        # A model that stopped by itself may have meant a name alone as a call without
        # arguments. One cut off by the token limit did not, and may have been about to
        # write a longer name.
        if (
            self._state is DelimitedCallParser._parse_call
            and not self._call.has_begun
            and reason is FinishReason.STOP
        ):
            self._call.finish(is_truncated=False)
        if self._state is DelimitedCallParser._parse_call and self._call.has_begun:
            self._end_call(reason)
        elif self._state is DelimitedCallParser._parse_malformed_call:
            self._emit_buffered(ToolCallDelta, buffered_length)
        elif (
            self._state is DelimitedCallParser._parse_marker
            and self._follows_call
            and (self._in_section or not self._prefix_matcher.matched)
        ):
            self._drop(buffered_length)
        else:
            self._emit_buffered(TextDelta, buffered_length)

    def _interrupt(self) -> None:
        # Reasoning may come between two calls; the parser then still expects a
        # delimiter, so nothing is reset.
        self._close_call()
        if self._buffer or self._state not in (
            DelimitedCallParser._parse_marker,
            DelimitedCallParser._parse_text,
        ):
            self._release_buffer(None)
            self._switch_to_text()


class AlternativeSyntaxes(Struct, frozen=True):
    """Two call syntaxes for one format.

    primary: also the syntax of enforced calls.
    fallback: for calls whose first character does not fit `primary`.
    """

    primary: CallSyntaxSpec
    fallback: CallSyntaxSpec

    def compile(self, openers: tuple[str, ...], closers: tuple[str, ...]) -> CompiledAlternatives:
        return CompiledAlternatives(
            self.primary.compile(openers, closers), self.fallback.compile(openers, closers)
        )


class CompiledAlternatives(Struct, frozen=True):
    primary: CallSyntax
    fallback: CallSyntax

    @property
    def markers(self) -> tuple[str, ...]:
        return *self.primary.markers, *self.fallback.markers

    @property
    def end_markers(self) -> tuple[str, ...]:
        return *self.primary.end_markers, *self.fallback.end_markers

    def can_begin_with(self, char: str) -> bool:
        return self.primary.can_begin_with(char) or self.fallback.can_begin_with(char)

    def list_heads(self, name: str) -> Sequence[str]:
        return *self.primary.list_heads(name), *self.fallback.list_heads(name)

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:
        return (self.primary if self.primary.can_begin_with(char) else self.fallback).build_reader(
            tools, char
        )

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        return self.primary.build_pieces(tool)
