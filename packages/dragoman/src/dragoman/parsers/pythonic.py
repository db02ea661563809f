"""Tool calls that look like Python: `f(x=1, y="z")`, or
`call:f{x:1,y:<escape>z<escape>}`.

Every value is converted to JSON: literals of Python such as True, 'a' and (1, 2), and
of JSON such as true. Nothing is evaluated. Not supported: adjacent strings ("a" "b"),
prefixes of strings (r"a"), complex and hexadecimal numbers, operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import Struct

from ..core.errors import Unsupported
from ..core.message import CustomTool, Tool
from ..core.syntax import (
    FreeText,
    JsonValue,
    LiteralText,
    OptionalPieces,
    RepeatedPieces,
    SyntaxPiece,
)
from .base import PrefixMatcher, PrefixResult
from .call_parser import ArgumentWriter, CallReader, build_argument_writer, escape_json
from .json_text import Json, PYTHON_ESCAPES, ReadStatus, StringDecoder, decode, encode
from .multi_pattern import AhoCorasick, MarkerScanner
from .tool_parameters import (
    ARGUMENT_NAME,
    NameReader,
    Schema,
    ToolParameters,
    build_free_text,
    build_one_of,
    check_free_of_markers,
    check_keywords,
    check_name,
    expand_alternatives,
    join_arguments,
    join_items,
    read_bounds,
    read_enforceable_parameters,
    read_parameters,
)

# Values.

_CONSTANTS = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_STRING_SPECIALS = MappingProxyType({"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')})
_OPENERS = MappingProxyType({"(": "[", "[": "[", "{": "{"})
"""The JSON bracket for each opening bracket."""
_CLOSERS = MappingProxyType({"(": ")", "[": "]", "{": "}"})
_KEY_TERMINATORS = re.compile(r"[:,\]}]")
# An automaton needs at least one text; this one occurs in no response.
NO_MARKERS = AhoCorasick(["\0"])
_AFTER_STRING = frozenset(",:)]};")


@dataclass(slots=True)
class _Bracket:
    """An open bracket.

    closer: closes it in Python.
    json_closer: closes it in JSON.
    undecided: index of its output in the chunks of a `{` that may begin a dict or a
        set, and of a `(` that may begin a tuple or a value in parentheses; None once
        that is known.
    """

    closer: str
    json_closer: str
    undecided: int | None = None


class StringSyntax:
    """The syntax of strings.

    marker: delimits strings; "" for none. With a marker, strings without commas and
        closing brackets may be unquoted.
    """

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.marker_patterns = AhoCorasick([marker]) if marker else None
        # Without a string marker a word is a number or a constant, so white space and
        # any other token end it too.
        self.word_terminators = re.compile(r"[,\]})]" if marker else r"[,\]})\s:=(\[{\"']")


class PythonicValueReader:
    """Converts one value to JSON, or to its decoded text if it is a string.

    words_are_text: an unquoted word is a string, whatever it looks like.
    """

    def __init__(self, string_syntax: StringSyntax, *, words_are_text: bool = False) -> None:
        self._words_are_text = words_are_text
        self._string_marker = string_syntax.marker
        self._string_marker_patterns = string_syntax.marker_patterns
        self._word_terminators = string_syntax.word_terminators
        self._state: Callable[[PythonicValueReader, str, int], tuple[int, ReadStatus]] = (
            PythonicValueReader._parse_start
        )
        self._brackets: list[_Bracket] = []
        self._in_key = False  # The current value is a key of an object.
        self._needs_comma = False
        self._prefix_matcher = PrefixMatcher(())
        self._quote = ""
        self._space = ""  # White space after a quote that may have ended a string.
        self._escaped = False
        self._is_empty_string = False
        self._quote_count = 0  # Quotes that may end a triple-quoted string.
        self._decoder = StringDecoder(PYTHON_ESCAPES)
        self._scanner = MarkerScanner(NO_MARKERS)
        self._word: list[str] = []
        self._raw = ""
        self._chunks: list[str] = []
        self.is_string = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Continue reading at `pos`, and return the new position and the status.

        The status is MORE, END after the value, or INVALID at a character that is not
        allowed.
        """
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            pos, status = self._state(self, text, pos)
        return pos, status

    def take_output(self) -> str:
        """Return the output that is new since the previous `take_output`."""
        # A set becomes a JSON list, so output from `{` on waits for the first `:`, `,`
        # or `}`, which shows whether it is a set or an object. From `(` on it waits for
        # the first `,` or `)`.
        if any(bracket.undecided is not None for bracket in self._brackets):
            return ""
        output = "".join(self._chunks)
        self._chunks.clear()
        return output

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string, and passes unchanged."""
        if not self.is_string:
            return False
        if self._state is PythonicValueReader._parse_marked_string:
            return self._scanner.is_plain_continuation(text)
        is_unescaped = self._quote[:1] not in text and "\\" not in text
        return (
            self._state is PythonicValueReader._parse_string
            and not self._escaped
            and self._decoder.is_plain
            and is_unescaped
        )

    def flush(self) -> None:
        """Append what was held back to the output, when the value is truncated."""
        self._brackets.clear()
        if self._state is PythonicValueReader._parse_string:
            self._append_text(self._decoder.flush())
        elif self._state is PythonicValueReader._parse_marked_string:
            self._append_text(self._scanner.flush())
        else:
            self._chunks.extend(self._word)

    def _parse_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        char = text[pos]
        if char.isspace():
            return pos + 1, ReadStatus.MORE
        if self._brackets and char == self._brackets[-1].closer:
            self._brackets[-1].undecided = None
            return self._close_bracket(pos)
        if self._needs_comma:
            self._chunks.append(", ")
            self._needs_comma = False
        if char in _STRING_SPECIALS:
            self._begin_string(char)
            self._state = PythonicValueReader._parse_string
            return pos + 1, ReadStatus.MORE
        if self._string_marker and char == self._string_marker[0]:
            self._prefix_matcher = PrefixMatcher((self._string_marker,))
            self._state = PythonicValueReader._parse_string_marker
        elif char in _CLOSERS and not self._in_key:
            self._chunks.append(_OPENERS[char])
            self._in_key = char == "{"
            # Formats with a string marker have no sets, so an object streams at once.
            is_undecided = char == "(" or (self._in_key and not self._string_marker)
            undecided = len(self._chunks) - 1 if is_undecided else None
            self._brackets.append(_Bracket(_CLOSERS[char], "}" if self._in_key else "]", undecided))
            return pos + 1, ReadStatus.MORE
        else:
            self._word.clear()
            self.is_string = self._words_are_text and not self._brackets
            self._state = PythonicValueReader._parse_word
        return pos, ReadStatus.MORE

    def _begin_string(self, quote: str) -> None:
        self._quote = quote
        self._decoder = StringDecoder(PYTHON_ESCAPES)
        self._raw = ""
        self._is_empty_string = True
        self.is_string = not self._brackets
        if not self.is_string:
            self._chunks.append('"')

    def _append_text(self, text: str) -> None:
        self._chunks.append(text if self.is_string else escape_json(text))

    def _parse_string(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if self._escaped:
            self._escaped = False
            self._append_text(self._decoder.decode(text[pos]))
            self._is_empty_string = False
            return pos + 1, ReadStatus.MORE
        special = _STRING_SPECIALS[self._quote[0]].search(text, pos)
        if special is None or special.start() > pos:
            self._is_empty_string = False
        if special is None:
            self._append_text(self._decoder.decode(text[pos:]))
            return len(text), ReadStatus.MORE
        self._escaped = special.group() == "\\"
        self._append_text(
            self._decoder.decode(text[pos : special.end() if self._escaped else special.start()])
        )
        if self._escaped:
            return special.end(), ReadStatus.MORE
        is_triple = len(self._quote) == 3
        self._quote_count = 1
        self._state = (
            PythonicValueReader._parse_end_quotes
            if is_triple
            else PythonicValueReader._parse_after_quote
        )
        return special.end(), ReadStatus.MORE

    def _parse_end_quotes(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Decide whether a quote in a triple-quoted string is one of three."""
        if text[pos] == self._quote[0]:
            self._quote_count += 1
            if self._quote_count < 3:
                return pos + 1, ReadStatus.MORE
            self._append_text(self._decoder.flush())
            return self._end_string(pos + 1)
        self._append_text(self._decoder.decode(self._quote[0] * self._quote_count))
        self._state = PythonicValueReader._parse_string
        return pos, ReadStatus.MORE

    def _parse_after_quote(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Decide whether a quote ended the string. If no value can end here, the model
        forgot to escape the quote.
        """
        if text[pos].isspace():
            self._space += text[pos]
            return pos + 1, ReadStatus.MORE
        space = self._space
        self._space = ""
        if text[pos] == self._quote and self._is_empty_string and not space:
            self._quote *= 3
            self._state = PythonicValueReader._parse_string
            return pos + 1, ReadStatus.MORE
        if text[pos] not in _AFTER_STRING:
            self._append_text(self._decoder.decode(self._quote + space))
            self._state = PythonicValueReader._parse_string
            return pos, ReadStatus.MORE
        self._append_text(self._decoder.flush())
        return self._end_string(pos)

    def _end_string(self, pos: int) -> tuple[int, ReadStatus]:
        if not self.is_string:
            self._chunks.append('"')
        return self._end_value(pos)

    def _parse_string_marker(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.MATCHED and self._string_marker_patterns is not None:
            self._begin_string("")
            self._scanner = MarkerScanner(self._string_marker_patterns)
            self._state = PythonicValueReader._parse_marked_string
        return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE

    def _parse_marked_string(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, chunk = self._scanner.read(text, pos)
        self._append_text(chunk)
        return self._end_string(pos) if self._scanner.marker else (pos, ReadStatus.MORE)

    def _parse_word(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a number, a constant, or an unquoted string."""
        terminators = _KEY_TERMINATORS if self._in_key else self._word_terminators
        terminator = terminators.search(text, pos)
        end = len(text) if terminator is None else terminator.start()
        self._word.append(text[pos:end])
        if terminator is None:
            return end, ReadStatus.MORE
        raw = "".join(self._word)
        value = raw.strip() if self.is_string else self._convert_word(raw.strip())
        if value is None:
            return end, ReadStatus.INVALID
        self._word.clear()
        self._raw = raw.strip()
        self._chunks.append(value)
        return self._end_value(end)

    def _convert_word(self, word: str) -> str | None:
        """Convert an unquoted word to JSON; return None if it is not valid."""
        if self._in_key:
            return encode(word) if word else None
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        number = _convert_json_scalar(word)
        if number is not None:
            return number
        return encode(word) if self._string_marker and word else None

    def _end_value(self, pos: int) -> tuple[int, ReadStatus]:
        if self._in_key:
            self._state = PythonicValueReader._parse_colon
            return pos, ReadStatus.MORE
        self._state = PythonicValueReader._parse_separator
        return pos, ReadStatus.MORE if self._brackets else ReadStatus.END

    def _parse_colon(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        bracket = self._brackets[-1]
        # A `{` with values and no colon is a Python set, which becomes a JSON array.
        if text[pos] in ",}" and bracket.undecided is not None:
            self._in_key = False
            if self._raw:
                word = self._convert_word(self._raw)
                if word is None:
                    return pos, ReadStatus.INVALID
                self._chunks[bracket.undecided + 1 :] = [word]
            self._chunks[bracket.undecided] = "["
            bracket.json_closer = "]"
            bracket.undecided = None
            self._state = PythonicValueReader._parse_separator
            return pos, ReadStatus.MORE
        if text[pos] != ":":
            return pos, ReadStatus.INVALID
        bracket.undecided = None
        self._chunks.append(": ")
        self._in_key = False
        self._state = PythonicValueReader._parse_start
        return pos + 1, ReadStatus.MORE

    def _parse_separator(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a comma or a closing bracket."""
        char = text[pos]
        bracket = self._brackets[-1]
        if char.isspace():
            return pos + 1, ReadStatus.MORE
        if char == bracket.closer:
            if bracket.undecided is not None:
                # Parentheses around one value are no tuple.
                self._chunks[bracket.undecided] = bracket.json_closer = ""
            return self._close_bracket(pos)
        if char != ",":
            return pos, ReadStatus.INVALID
        bracket.undecided = None
        self._needs_comma = True
        self._state = PythonicValueReader._parse_start
        self._in_key = bracket.json_closer == "}"
        return pos + 1, ReadStatus.MORE

    def _close_bracket(self, pos: int) -> tuple[int, ReadStatus]:
        self._chunks.append(self._brackets.pop().json_closer)
        self._needs_comma = self._in_key = False
        return self._end_value(pos + 1)


def _convert_json_scalar(word: str) -> str | None:
    """Convert a number (or true, false, null) to JSON; return None for any other word."""
    try:
        decode(word)
    except ValueError:
        # `1_000`, `.5` and `+1` are valid in Python.
        try:
            is_integer = word.lstrip("+-").replace("_", "").isdecimal()
            number = int(word) if is_integer else float(word)
        except ValueError:
            return None
        return encode(number) if number - number == 0 else None
    return word


# Calls.

_PYTHON_LITERALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"boolean": ("True", "False"), "null": ("None",)}
)
_MAX_DEPTH = 4
"""Maximum nesting of lists and objects that are enforced in the family's own syntax;
deeper ones are enforced as JSON.

The limit is needed because a schema may refer to itself.
"""


class PythonicSyntax(Struct, frozen=True):
    """The syntax of a pythonic call.

    open_bracket, close_bracket: the brackets around the arguments.
    assign: the character between an argument's name and its value.
    prefix: precedes every name.
    alternative_prefixes: also read before a name, but not enforced.
    string_marker: delimits strings without escapes, besides quotes; "" for none. With a
    marker, strings and the keys of nested objects may also be unquoted.
    """

    open_bracket: str = "("
    close_bracket: str = ")"
    assign: str = "="
    prefix: str = ""
    string_marker: str = ""
    alternative_prefixes: tuple[str, ...] = ()

    def compile(self, outer_markers: tuple[str, ...]) -> CompiledPythonicSyntax:  # noqa: ARG002
        return CompiledPythonicSyntax(self)


class CompiledPythonicSyntax:
    """A `CallSyntax` of pythonic calls."""

    def __init__(self, syntax: PythonicSyntax) -> None:
        self.syntax = syntax
        self.string_syntax = StringSyntax(syntax.string_marker)

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.syntax.string_marker,) if self.syntax.string_marker else ()

    @property
    def end_markers(self) -> tuple[str, ...]:
        return ()

    def can_begin_with(self, char: str) -> bool:
        return char.isalpha() or char == "_"

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return PythonicReader(self, tools)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        parameters = read_enforceable_parameters(tool)
        syntax = self.syntax
        comma = LiteralText("," if syntax.string_marker else ", ")
        declared: list[tuple[tuple[SyntaxPiece, ...], bool]] = []
        for parameter in parameters.properties:
            schemas, unenforced = expand_alternatives(parameter.schema)
            head = LiteralText(
                check_name(parameter.name, ARGUMENT_NAME) + syntax.assign, unenforced
            )
            value = build_one_of([self._build_value(schema) for schema in schemas])
            declared.append(((head, *value), parameter.required))
        arguments = join_arguments(declared, comma)
        if parameters.allows_additional:
            any_argument = (
                FreeText(syntax.assign, pattern="[A-Za-z_][A-Za-z0-9_]*"),
                JsonValue(None, allows_any_type=True),
            )
            arguments = (OptionalPieces((*any_argument, RepeatedPieces((comma, *any_argument)))),)
        return (
            LiteralText(
                syntax.prefix + check_name(tool.name) + syntax.open_bracket, parameters.unenforced
            ),
            *arguments,
            LiteralText(syntax.close_bracket),
        )

    def _build_value(self, schema: Schema, depth: int = 0) -> tuple[SyntaxPiece, ...]:
        string_marker = self.syntax.string_marker
        match schema:
            case {"const": str() as constant} if string_marker:
                return (
                    LiteralText(
                        string_marker
                        + check_free_of_markers(constant, (string_marker,))
                        + string_marker
                    ),
                )
            case {"type": "string"} if string_marker:
                return LiteralText(string_marker), build_free_text(schema, string_marker)
            case {"type": "array" | "object"} if string_marker and depth < _MAX_DEPTH:
                try:
                    return self._build_nested(schema, depth + 1)
                # The parser also reads JSON, for which all of a schema's keywords can
                # be enforced.
                except Unsupported:
                    return (JsonValue(encode(schema), allows_any_type=True),)
            case {"type": "boolean" | "null" as name} if not string_marker:
                return build_one_of([(LiteralText(word),) for word in _PYTHON_LITERALS[name]])
            case _:
                return (JsonValue(encode(schema), allows_any_type=True),)

    def _build_nested(self, schema: Schema, depth: int) -> tuple[SyntaxPiece, ...]:
        """Build a list or object in the family's own syntax. Raises Unsupported if that
        cannot enforce its schema.
        """
        comma = LiteralText(",")
        if schema["type"] == "array":
            item = schema.get("items")
            check_keywords(schema, "items", "minItems", "maxItems")
            if not isinstance(item, dict):
                raise Unsupported("The items have no schema.")
            items = join_items(self._build_part(schema, item, depth), comma, *read_bounds(schema))
            return LiteralText("["), *items, LiteralText("]")
        check_keywords(schema, "properties", "required", "additionalProperties")
        declared = schema.get("properties")
        required = schema.get("required", [])
        if (
            not isinstance(declared, dict)
            or not declared
            or schema.get("additionalProperties") is not False
        ):
            raise Unsupported("The object may have other members.")
        if not isinstance(required, list) or not set(required) <= declared.keys():
            raise Unsupported("A member is required that is not declared.")
        members = [
            (
                (
                    LiteralText(check_name(name, ARGUMENT_NAME) + ":"),
                    *self._build_part(schema, part, depth),
                ),
                name in required,
            )
            for name, part in declared.items()
        ]
        return LiteralText("{"), *join_arguments(members, comma), LiteralText("}")

    def _build_part(self, whole: Schema, part: Json, depth: int) -> tuple[SyntaxPiece, ...]:
        """Build an item or member. Raises Unsupported unless all keywords of its schema
        can be enforced.
        """
        defs: Schema = {key: whole[key] for key in ("$defs", "definitions") if key in whole}
        schemas, unenforced = expand_alternatives(
            {**defs, **part} if isinstance(part, dict) else {"not": {}}
        )
        if unenforced or any(
            alternative.get("type") == "string" and "format" in alternative
            for alternative in schemas
        ):
            raise Unsupported("A keyword can only be enforced in JSON.")
        for alternative in schemas:
            if alternative.get("type") == "string":
                check_keywords(alternative, "pattern", "minLength", "maxLength")
        return build_one_of([self._build_value(alternative, depth) for alternative in schemas])


class PythonicReader:
    """Reads one call: its name, and then its arguments, each a name and a value."""

    id: str | None = None
    end_marker = ""
    awaits_delimiter = False

    def __init__(self, compiled: CompiledPythonicSyntax, tools: Mapping[str, Tool]) -> None:
        self._compiled = compiled
        self._syntax = compiled.syntax
        self._tools = tools
        self._state: Callable[[PythonicReader, str, int], tuple[int, ReadStatus]] = (
            PythonicReader._parse_prefix if compiled.syntax.prefix else PythonicReader._parse_name
        )
        self._prefix_matcher = PrefixMatcher(
            (compiled.syntax.prefix, *compiled.syntax.alternative_prefixes)
        )
        self._name = NameReader()
        self._writer: ArgumentWriter = build_argument_writer(is_custom=False)
        self._parameters = ToolParameters((), allows_additional=True)
        self._argument = ""  # The name of the current argument.
        self._name_scanner = MarkerScanner(NO_MARKERS)
        self._value = PythonicValueReader(compiled.string_syntax)
        self._chunks: list[str] = []
        self.name = ""
        self.has_begun = self.is_undeclared = self.is_complete = self.is_custom = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            pos, status = self._state(self, text, pos)
        if status is ReadStatus.INVALID:
            self.finish()
        return pos, status

    def _parse_prefix(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.MATCHED:
            self._state = PythonicReader._parse_name
        return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE

    def _parse_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a name and the bracket directly after it."""
        pos, is_complete = self._name.read(text, pos)
        if not is_complete:
            return pos, ReadStatus.MORE
        if not self._name.name or text[pos] != self._syntax.open_bracket:
            return pos, ReadStatus.INVALID
        self.name = self._name.name
        tool = self._tools.get(self.name)
        self.has_begun = tool is not None
        self.is_undeclared = tool is None
        self.is_custom = isinstance(tool, CustomTool)
        self._writer = build_argument_writer(is_custom=self.is_custom)
        if tool is not None and self._syntax.string_marker:
            self._parameters = read_parameters(tool)
        self._state = PythonicReader._parse_argument_start
        return pos + 1, ReadStatus.MORE

    def _parse_argument_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        if text[pos] == self._syntax.close_bracket:
            return self._finish_call(pos)
        if self._syntax.string_marker and text[pos] == self._syntax.string_marker[0]:
            self._prefix_matcher = PrefixMatcher((self._syntax.string_marker,))
            self._state = PythonicReader._parse_name_marker
        else:
            self._name = NameReader(ARGUMENT_NAME)
            self._state = PythonicReader._parse_argument_name
        return pos, ReadStatus.MORE

    def _parse_argument_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, is_complete = self._name.read(text, pos)
        if is_complete:
            self._argument = self._name.name
            self._state = PythonicReader._parse_value_start
        return pos, ReadStatus.INVALID if is_complete and not self._name.name else ReadStatus.MORE

    def _parse_name_marker(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        patterns = self._compiled.string_syntax.marker_patterns
        if result is PrefixResult.MATCHED and patterns is not None:
            self._argument = ""
            self._name_scanner = MarkerScanner(patterns)
            self._state = PythonicReader._parse_marked_name
        return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE

    def _parse_marked_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, chunk = self._name_scanner.read(text, pos)
        self._argument += chunk
        if self._name_scanner.marker:
            self._state = PythonicReader._parse_value_start
        return pos, ReadStatus.MORE

    def _parse_value_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        if text[pos] != self._syntax.assign:
            return pos, ReadStatus.INVALID
        self._append_text(self._writer.begin_argument(self._argument))
        is_text = self._parameters.find_types(self._argument) == ("string",)
        self._value = PythonicValueReader(self._compiled.string_syntax, words_are_text=is_text)
        self._state = PythonicReader._parse_value
        return pos + 1, ReadStatus.MORE

    def _parse_value(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        value = self._value
        was_string = value.is_string
        pos, status = value.read(text, pos)
        if value.is_string and not was_string:
            self._append_text(self._writer.begin_string())
        self._append_value()
        if status is ReadStatus.END:
            if value.is_string:
                self._append_text(self._writer.end_string())
            self._state = PythonicReader._parse_value_end
        return pos, ReadStatus.INVALID if status is ReadStatus.INVALID else ReadStatus.MORE

    def _parse_value_end(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        if text[pos] == self._syntax.close_bracket:
            return self._finish_call(pos)
        self._state = PythonicReader._parse_argument_start
        return (pos + 1, ReadStatus.MORE) if text[pos] == "," else (pos, ReadStatus.INVALID)

    def _finish_call(self, pos: int) -> tuple[int, ReadStatus]:
        self.is_complete = True
        self._append_text(self._writer.finish())
        return pos + 1, ReadStatus.CLOSE

    def _append_value(self) -> None:
        chunk = self._value.take_output()
        self._append_text(
            self._writer.write_text(chunk)
            if self._value.is_string
            else self._writer.write_json(chunk)
        )

    def _append_text(self, text: str) -> None:
        if self.has_begun and text:
            self._chunks.append(text)

    def is_plain_continuation(self, text: str) -> bool:
        in_value = self._state is PythonicReader._parse_value and self._value.is_plain_continuation(
            text
        )
        return in_value and self._writer.write_text(text) == text

    def take_arguments(self) -> str:
        arguments = "".join(self._chunks)
        self._chunks.clear()
        return arguments

    def finish(self) -> None:
        if self._state is PythonicReader._parse_value:
            self._value.flush()
            self._append_value()
