"""Sinks of a region's text, which convert it into events. None knows delimiters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...core.events import Event, FinishReason, TextDelta, Token, ToolCallDelta, ToolCallStart
from ...core.message import CustomTool, Tool
from ..json_values import Json, coerce, decode, encode, find_schema_types
from .content import fill_transform, parse_content
from .template import TemplateField


class ParsedCall(Struct, frozen=True):
    """A parsed call. arguments: JSON text, or a custom tool's input."""

    name: str
    arguments: str
    is_custom: bool


def parse_calls(
    field: TemplateField, body: str, captures: Mapping[str, str], tools: Mapping[str, Tool]
) -> list[ParsedCall]:
    """The calls of declared tools in a region. Raises ValueError if it is invalid or calls none of them."""
    value = parse_content(field.content, body)
    scope: dict[str, Json] = dict(captures)
    if field.transform_each:
        value = [fill_transform(field.transform, {**scope, **_require_object(item)}) for item in _require_list(value)]
    elif field.transform is not None:
        value = fill_transform(field.transform, {**scope, "content": value})
    parsed = [_parse_call(item, tools) for item in (value if isinstance(value, list) else [value])]
    calls = [call for call in parsed if call is not None]
    # Text that calls nothing declared is shown to the user rather than lost: the caller releases it unchanged.
    if not calls:
        raise ValueError("no call of a declared tool")
    return calls


def _require_list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError("'transform_each' requires a list")
    return value


def _require_object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError("this should be an object")
    return value


def _parse_call(value: Json, tools: Mapping[str, Tool]) -> ParsedCall | None:
    """Parse a call; None where the tool is not declared."""
    item = _require_object(value)
    # Both {"function": {"name": …}} and {"name": …}: the templates of transformers' chat format allow both.
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
    if isinstance(arguments, dict) and tool.parameters is not None:
        arguments = _cast_arguments(arguments, tool.parameters)
    return ParsedCall(name, _encode_arguments({} if arguments is None else arguments), is_custom=False)


def _encode_arguments(arguments: Json) -> str:
    return arguments if isinstance(arguments, str) else encode(arguments)


def _cast_arguments(arguments: dict[str, Json], schema: str) -> dict[str, Json]:
    """Cast texts to the schema's types: in XML every value is text."""
    declared = decode(schema)
    properties = declared.get("properties") if isinstance(declared, dict) else None
    if not isinstance(properties, dict):
        return arguments
    return {key: _cast_value(value, find_schema_types(properties.get(key))) for key, value in arguments.items()}


def _cast_value(value: Json, types: tuple[str, ...]) -> Json:
    match value:
        case str() if types:
            return coerce(value, types)
        case list() if types and "array" not in types:  # A key that occurs several times.
            return [coerce(item, types) if isinstance(item, str) else item for item in value]
        case _:
            return value


Tokens = tuple[Token, ...]
EventFactory = Callable[[int, str, Tokens], Event]
EmitEvent = Callable[[EventFactory, str, Sequence[Token]], None]
"""Emits the event of a text; without text the tokens are attached to the next event."""


class ClosingDelimiter(Struct, frozen=True):
    """A closing delimiter as it was written, and the captures of its groups."""

    text: str
    tokens: Tokens
    captures: Mapping[str, str]


class Sink(Protocol):
    """The open region."""

    @property
    def has_output(self) -> bool:
        """Whether any of it was emitted."""
        ...

    def feed_prompt(self, text: str) -> None:
        """Text of the region that is in the prompt: it counts, but is not emitted."""
        ...

    def feed(self, text: str, tokens: Tokens) -> None:
        """The next text of the region."""
        ...

    def close(self, closing: ClosingDelimiter) -> None:
        """Its closing delimiter was read."""
        ...

    def end(self, reason: FinishReason | None) -> None:
        """The region ends without one: the response ends, or another region begins."""
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
    """Emits text that turned out to be no call, with its delimiters."""

    def feed(self, text: str, tokens: Tokens) -> None:
        self._emit(TextDelta, text, tokens)

    def close(self, closing: ClosingDelimiter) -> None:
        self._emit(TextDelta, closing.text, closing.tokens)


class TextSink(DiscardSink):
    """Streams text, optionally stripped of white space.

    separator: precedes the first word.
    has_begun: the beginning is already emitted, so only white space at the end is stripped.
    """

    def __init__(
        self, emit: EmitEvent, event_factory: EventFactory, *, strip: bool, separator: str = "", has_begun: bool = False
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
        stripped, whitespace = text, ""
        if self._strip:
            text = text if self._has_begun else text.lstrip()
            # White space is held back until more text follows, since at the region's end it is stripped.
            stripped = text.rstrip()
            whitespace = text[len(stripped) :]
        if not stripped:
            self._emit(self._event_factory, "", tokens)
        else:
            self._emit(self._event_factory, "".join([self._separator, *self._pending_whitespace, stripped]), tokens)
            self._has_begun, self._separator = True, ""
            self._pending_whitespace.clear()
        if whitespace:
            self._pending_whitespace.append(whitespace)


class BufferedCallSink(DiscardSink):
    """Buffers a region with calls that can only be parsed when it is complete. captures: of its opening delimiter."""

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
        """End of stream may replace the closing delimiter; a call that was cut off by length is not emitted."""
        if reason is FinishReason.STOP:
            self._parse_calls(self._captures, "")
        else:
            self._emit_as_text("")

    def _parse_calls(self, captures: Mapping[str, str], closing: str) -> None:
        body = "".join([*self._prompt_chunks, *self._chunks])
        try:
            calls = parse_calls(self._field, body, captures, self._tools)
        # No call that can be read: better shown to the user than lost.
        except ValueError:
            self._emit_as_text(closing)
            return
        self._emit(TextDelta, "", self._tokens)
        for call in calls:
            self._emit(self._build_start_factory(call), call.name, ())
            self._emit(ToolCallDelta, call.arguments, ())

    def _build_start_factory(self, call: ParsedCall) -> EventFactory:
        return lambda choice, _, tokens: ToolCallStart(choice, self._new_id(), call.name, tokens, call.is_custom)

    def _emit_as_text(self, closing: str) -> None:
        self._emit(TextDelta, "".join([self._opening_text, *self._chunks, closing]), self._tokens)
