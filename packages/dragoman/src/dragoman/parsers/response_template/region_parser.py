"""The parser of a response template, which splits text into regions and converts
regions into events.

Text between an opening delimiter and its closing delimiter is in that field's region.
All other text is in the region of the implicit field, the one without an opening
delimiter, and is discarded if the template has no such field. The leftmost delimiter
wins, and the longest of several that begin together. A text region streams; a call
streams once its name is known, or is emitted whole when its region closes. Unparseable
text is emitted unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...core.errors import Unsupported
from ...core.events import (
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)
from ...core.message import CustomTool, Tool
from ...core.syntax import (
    JsonValue,
    LiteralText,
    ParseContext,
    Parser,
    ReasoningFormat,
    ReasoningSyntax,
    SyntaxPiece,
    ToolFormat,
)
from ..call_parser import ArgumentsReader, CallParser, JsonCallReader
from ..json_text import Json, ReadStatus, coerce, encode
from ..tool_parameters import build_arguments_schema, read_parameters
from .pattern import find_literals, render_pattern
from .pike_vm import PatternMatch, PatternSearch, Program
from .template import (
    Delimiter,
    FieldKind,
    JsonContent,
    KeyedCallLayout,
    NamedByDelimiterLayout,
    ResponseTemplate,
    TemplateField,
    TextContent,
    XmlContent,
    fill_transform,
    parse_content,
    read_template,
)

# Sinks: they receive a region's text and convert it into events.


class ParsedCall(Struct, frozen=True):
    """A parsed call of a declared tool.

    arguments: JSON text, or a custom tool's input.
    """

    name: str
    arguments: str
    is_custom: bool


def parse_calls(
    field: TemplateField, body: str, captures: Mapping[str, str], tools: Mapping[str, Tool]
) -> list[ParsedCall]:
    """Parse the calls of declared tools in a region.

    body: the region's text.
    captures: the groups that its delimiters captured.

    Raises:
        ValueError: the text is invalid or contains no call of a declared tool.
    """
    value = parse_content(field.content, body)
    scope: dict[str, Json] = dict(captures)
    if field.transform_each:
        if not isinstance(value, list):
            raise ValueError("'transform_each' requires a list")
        value = [
            fill_transform(field.transform, {**scope, **_require_object(item)}) for item in value
        ]
    elif field.transform is not None:
        value = fill_transform(field.transform, {**scope, "content": value})
    items = value if isinstance(value, list) else [value]
    has_types = isinstance(field.content, JsonContent)
    parsed = [_parse_call(item, tools, has_types=has_types) for item in items]
    calls = [call for call in parsed if call is not None]
    # The caller emits such text unchanged, so it is shown to the user instead of lost.
    if not calls:
        raise ValueError("no call of a declared tool")
    return calls


def _require_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError("this should be an object")
    return value


def _parse_call(value: Json, tools: Mapping[str, Tool], *, has_types: bool) -> ParsedCall | None:
    """Parse a call; return None if its tool is not declared. Raises ValueError if it is
    invalid.

    has_types: the call was written in JSON, so a string that the schema allows is meant
        as a string.
    """
    item = _require_object(value)
    # Both {"function": {"name": …}} and {"name": …}: the templates of transformers'
    # chat format allow both.
    function = _require_object(item.get("function", item))
    name = function.get("name")
    if not isinstance(name, str):
        raise ValueError("a call without a name")
    tool = tools.get(name)
    if tool is None:
        return None
    arguments = function.get("arguments")
    if isinstance(tool, CustomTool):
        if isinstance(arguments, dict) and isinstance(arguments.get("input"), str):
            arguments = arguments["input"]
        return ParsedCall(name, _encode_arguments(arguments), is_custom=True)
    if isinstance(arguments, dict):
        parameters = read_parameters(tool)
        # Strings are cast to the schema's types, since in XML every value is a string.
        types = {key: parameters.find_types(key) for key in arguments}
        arguments = {
            key: value if has_types and "string" in types[key] else _cast_value(value, types[key])
            for key, value in arguments.items()
        }
    return ParsedCall(
        name, _encode_arguments({} if arguments is None else arguments), is_custom=False
    )


def _encode_arguments(arguments: Json) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments)


def _cast_value(value: Json, types: tuple[str, ...]) -> Json:
    match value:
        case str() if types:
            return coerce(value, types)
        case list() if (
            types and "array" not in types
        ):  # The values of a key that occurs several times.
            return [coerce(item, types) if isinstance(item, str) else item for item in value]
        case _:
            return value


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
        self.single_tokens = frozenset(
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
        super().__init__(context, compiled.single_tokens)
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
            self._end_call()
        else:
            self._emit_buffered(TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer or self._field is not self._compiled.implicit:
            self._finish(None)
            self._in_call = False
            self._record_emitted()
            self._close_region()
            self._search_from(self._buffer.start)


def load(
    spec: bytes | str, added_tokens: Collection[str] = ()
) -> tuple[ReasoningFormat | None, ToolFormat]:
    """Load the reasoning format and the tool format of a response template.

    Both are the same object; the reasoning format is None if the template does not
    define reasoning.

    spec: the template as JSON text.
    added_tokens: texts of the vocabulary's added tokens; a delimiter among them counts
        only as that token.

    Raises:
        ValueError: the template is invalid or needs an unsupported feature; the message
            names the field.
    """
    format = ResponseTemplateFormat(read_template(spec), added_tokens)
    return format if format.has_reasoning else None, format


class ResponseTemplateFormat:
    """The reasoning and tool format that a response template defines.

    One parser reads the whole response, as content, reasoning and calls may occur in
    any order.
    """

    def __init__(self, template: ResponseTemplate, added_tokens: Collection[str] = ()) -> None:
        self._template = template
        self._added_tokens = added_tokens
        self._compiled = CompiledTemplate(template, added_tokens)

    def create_parser(self, context: ParseContext) -> Parser:
        return RegionParser(self._compiled, context)

    def _find_field(self, kind: FieldKind) -> TemplateField | None:
        return next((field for field in self._template.fields if field.kind is kind), None)

    @property
    def has_reasoning(self) -> bool:
        """Whether the template defines reasoning."""
        return all(self._find_reasoning_delimiters())

    @property
    def syntax(self) -> ReasoningSyntax:
        return ReasoningSyntax(*self._find_reasoning_delimiters())

    def _find_reasoning_delimiters(self) -> tuple[str, str]:
        field = self._find_field(FieldKind.REASONING)
        if field is None:
            return "", ""
        return _render_delimiter(field.open) or "", _render_delimiter(field.close) or ""

    @property
    def markers(self) -> tuple[str, ...]:
        return self._select_markers(
            text for field in self._template.fields for text in _find_field_texts(field)
        )

    @property
    def call_openers(self) -> tuple[str, ...]:
        """The markers that begin a call and nothing else: without them there can be no
        call.
        """
        field = self._find_field(FieldKind.CALLS)
        other_texts = [
            text
            for other_field in self._template.fields
            if other_field is not field
            for text in _find_field_texts(other_field)
        ]
        opening = _find_delimiter_texts(None if field is None else field.open)
        return tuple(
            marker
            for marker in self._select_markers(opening)
            if not any(marker in text for text in other_texts)
        )

    def _select_markers(self, texts: Iterable[str]) -> tuple[str, ...]:
        """Return the added tokens in these texts, or the texts themselves if no added
        tokens are known.
        """
        unique_texts = tuple(dict.fromkeys(texts))
        if not self._added_tokens:
            return unique_texts
        return tuple(
            token for token in self._added_tokens if any(token in text for text in unique_texts)
        )

    @property
    def section_delimiters(self) -> tuple[str, str]:
        return "", ""

    @property
    def call_separator(self) -> str:
        return ""

    @property
    def has_unmarked_calls(self) -> bool:
        return False

    def build_call_syntax(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        """Build the syntax of enforced calls.

        Raises:
            Unsupported: calls are not JSON, or a delimiter has no fixed text.
        """
        field = self._find_field(FieldKind.CALLS)
        schema = JsonValue(build_arguments_schema(tool))
        closing = "" if field is None or field.close is None else _render_delimiter(field.close)
        match None if field is None else field.call_layout:
            case KeyedCallLayout(name, arguments):
                opening = _render_delimiter(field.open if field else None)
                keys = (
                    f"{{{_encode_string(name)}: {_encode_string(tool.name)}, "
                    f"{_encode_string(arguments[0])}: "
                )
                pieces = (
                    None if opening is None else opening + keys,
                    None if closing is None else "}" + closing,
                )
            case NamedByDelimiterLayout(capture):
                pieces = (
                    _render_delimiter(field.open if field else None, {capture: tool.name}),
                    closing,
                )
            case _:
                pieces = (None, None)
        if pieces[0] is None or pieces[1] is None:
            raise Unsupported("Tool calls cannot be enforced with this model's response template.")
        return LiteralText(pieces[0]), schema, LiteralText(pieces[1])


def _encode_string(text: str) -> str:
    # Delimiters usually begin with `<`; escaped, none can begin inside the string.
    return json.dumps(text, ensure_ascii=False).replace("<", "\\u003c")


def _render_delimiter(
    delimiter: Delimiter | None, captures: dict[str, str] | None = None
) -> str | None:
    """Return the delimiter as text, the first if it has several; None if its text is
    not fixed.
    """
    if delimiter is None:
        return None
    return delimiter.texts[0] if delimiter.texts else render_pattern(delimiter.node, captures or {})


def _find_delimiter_texts(delimiter: Delimiter | None) -> Sequence[str]:
    if delimiter is None:
        return ()
    return delimiter.texts or find_literals(delimiter.node)


def _find_field_texts(field: TemplateField) -> Iterator[str]:
    """Yield all fixed texts that the field's delimiters and content contain."""
    yield from _find_delimiter_texts(field.open)
    yield from _find_delimiter_texts(field.close)
    match field.content:
        case JsonContent(string_delims=delimiters):
            yield from (delimiter for pair in delimiters for delimiter in pair)
        case XmlContent(tag):
            yield from tag.literals
        case _:
            pass
