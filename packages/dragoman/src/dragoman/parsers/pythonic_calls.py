"""Tool calls that look like Python: `f(x=1, y="z")`, or
`call:f{x:1,y:<escape>z<escape>}`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from ..core.errors import Unsupported
from ..core.json_types import JsonValue
from ..core.message import CustomTool, Tool
from ..core.syntax import (
    FreeText,
    JsonPiece,
    LiteralText,
    OptionalPieces,
    RepeatedPieces,
    SyntaxPiece,
)
from .aho_corasick import MarkerScanner
from .argument_pieces import (
    build_free_text,
    build_one_of,
    check_free_of_markers,
    check_keywords,
    join_arguments,
    join_items,
    read_bounds,
)
from .argument_writer import ArgumentWriter, build_argument_writer
from .call_names import ARGUMENT_NAME, NameReader, check_name
from .call_reader import CallReader
from .json_codec import encode
from .json_scanner import ReadStatus
from .prefix_matcher import PrefixMatcher, PrefixResult
from .pythonic_values import (
    CLOSERS,
    NO_MARKERS,
    QUOTE_PATTERNS,
    PythonicValueReader,
    StringSyntax,
)
from .schema_alternatives import Schema, expand_alternatives
from .tool_parameters import ToolParameters, read_enforceable_parameters, read_parameters

_PYTHON_LITERALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"boolean": ("True", "False"), "null": ("None",)}
)
_LAST_NAME = re.compile(r"[\w.\-]+$")
_MAX_MISSING_COMMAS = 16
"""Maximum arguments of a call that may lack the comma before them. Each is read again,
so without a limit the time would not be linear.
"""
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

    def compile(
        self,
        openers: tuple[str, ...],
        closers: tuple[str, ...],
    ) -> CompiledPythonicSyntax:
        return CompiledPythonicSyntax(self, (*closers, *openers))


class CompiledPythonicSyntax:
    """A `CallSyntax` of pythonic calls.

    delimiters: those around calls, which also end a call whose bracket is not closed.
    """

    def __init__(self, syntax: PythonicSyntax, delimiters: tuple[str, ...] = ()) -> None:
        self.syntax = syntax
        self.delimiters = delimiters
        self.string_syntax = StringSyntax(syntax.string_marker, delimiters)
        self.marks = self.string_syntax.marks
        self.mark_starts = self.string_syntax.mark_starts

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.syntax.string_marker,) if self.syntax.string_marker else ()

    @property
    def end_markers(self) -> tuple[str, ...]:
        return ()

    def can_begin_with(self, char: str) -> bool:
        return char.isalpha() or char == "_"

    def list_heads(self, name: str) -> Sequence[str]:
        return (self.syntax.prefix + name + self.syntax.open_bracket,)

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
                JsonPiece(None, allows_any_type=True),
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
                    return (JsonPiece(encode(schema), allows_any_type=True),)
            case {"type": "boolean" | "null" as name} if not string_marker:
                return build_one_of([(LiteralText(word),) for word in _PYTHON_LITERALS[name]])
            case _:
                return (JsonPiece(encode(schema), allows_any_type=True),)

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

    def _build_part(self, whole: Schema, part: JsonValue, depth: int) -> tuple[SyntaxPiece, ...]:
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
    """Reads one call: its name, and then its arguments, each a name and a value.

    Models confuse brackets, quotes and `=` with `:`, write a name in quotes, or add
    words. What is neither a name nor a value is skipped, so a mistake costs one
    argument at most.
    """

    id: str | None = None
    awaits_delimiter = False
    resuming_markers: tuple[str, ...] = ()

    def __init__(self, compiled: CompiledPythonicSyntax, tools: Mapping[str, Tool]) -> None:
        self._compiled = compiled
        self._syntax = compiled.syntax
        self._tools = tools
        self._state: Callable[[PythonicReader, str, int], tuple[int, ReadStatus]] = (
            PythonicReader._parse_name
        )
        self._prefix_matcher = PrefixMatcher(())
        self._name = NameReader()
        self._writer: ArgumentWriter = build_argument_writer(is_custom=False)
        self._parameters = ToolParameters((), allows_additional=True)
        self._closers: list[str] = []
        self._argument = ""  # The name of the current argument.
        self._name_scanner = MarkerScanner(NO_MARKERS)
        self._value = PythonicValueReader(compiled.string_syntax)
        self._n_missing_commas = 0
        self._skipped: list[str] = []
        self._chunks: list[str] = []
        self.name = self.end_marker = ""
        self.has_begun = self.is_undeclared = self.is_complete = self.is_custom = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            pos, status = self._state(self, text, pos)
        return pos, status

    def _parse_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read the prefix, the name, and the bracket directly after it."""
        pos, is_complete = self._name.read(text, pos)
        if not is_complete:
            return pos, ReadStatus.MORE
        name = self._name.name
        for prefix in (self._syntax.prefix, *self._syntax.alternative_prefixes):
            if prefix and name.startswith(prefix):
                name = name.removeprefix(prefix)
                break
        if not name and self._name.name and text[pos].isspace():
            self._name = NameReader()
            return pos, ReadStatus.MORE
        if not name or text[pos] not in "({":
            return pos, ReadStatus.INVALID
        self.name = name
        tool = self._tools.get(self.name)
        self.has_begun = tool is not None
        self.is_undeclared = tool is None
        self.is_custom = isinstance(tool, CustomTool)
        self._writer = build_argument_writer(is_custom=self.is_custom)
        if tool is not None:
            self._parameters = read_parameters(tool)
        self._closers = [CLOSERS[text[pos]]]
        self._state = PythonicReader._parse_first_argument
        return pos + 1, ReadStatus.MORE

    def _parse_first_argument(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a second bracket around the arguments, as in `f({a: 1})`."""
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        self._state = PythonicReader._parse_argument_start
        if text[pos] != "{":
            return pos, ReadStatus.MORE
        self._closers.append("}")
        return pos + 1, ReadStatus.MORE

    def _parse_argument_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        char = text[pos]
        if char in ")]}":
            return self._close_bracket(char, pos)
        if char in self._compiled.mark_starts:
            self._prefix_matcher = PrefixMatcher(self._compiled.marks)
            self._state = PythonicReader._parse_mark
        elif char in "\"'":
            self._argument = ""
            self._name_scanner = MarkerScanner(QUOTE_PATTERNS[char])
            self._state = PythonicReader._parse_quoted_name
            return pos + 1, ReadStatus.MORE
        else:
            self._name = NameReader(ARGUMENT_NAME)
            self._state = PythonicReader._parse_argument_name
        return pos, ReadStatus.MORE

    def _close_bracket(self, char: str, pos: int) -> tuple[int, ReadStatus]:
        last = ""
        while self._closers and last != char:
            last = self._closers.pop()
            if char not in self._closers:
                break
        if self._closers:
            return pos + 1, ReadStatus.MORE
        self._close_call()
        return pos + 1, ReadStatus.CLOSE

    def _close_call(self) -> None:
        self._append_text(self._writer.finish())
        self.is_complete = True

    def _parse_mark(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.INCOMPLETE:
            return pos, ReadStatus.MORE
        self._state = PythonicReader._parse_argument_start
        marker = self._prefix_matcher.marker
        patterns = self._compiled.string_syntax.marker_patterns
        if result is PrefixResult.NO_MATCH:
            return pos, ReadStatus.MORE
        if marker == self._syntax.string_marker and patterns is not None:
            self._argument = ""
            self._name_scanner = MarkerScanner(patterns)
            self._state = PythonicReader._parse_quoted_name
            return pos, ReadStatus.MORE
        self.end_marker = marker
        self._close_call()
        return pos, ReadStatus.CLOSE

    def _parse_argument_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, is_complete = self._name.read(text, pos)
        if not is_complete:
            return pos, ReadStatus.MORE
        self._argument = self._clean_name(self._name.name)
        if self._argument:
            self._state = PythonicReader._parse_value_start
            return pos, ReadStatus.MORE
        # No name begins with this character.
        self._state = PythonicReader._parse_argument_start
        is_read = text[pos] in ")]}\"'" or text[pos] in self._compiled.mark_starts
        if not is_read and text[pos] != ",":
            self._skipped.append(text[pos])
        return pos + (not is_read), ReadStatus.MORE

    def _clean_name(self, written: str) -> str:
        """Return the name without characters before it that do not belong to it."""
        last = _LAST_NAME.search(written)
        names = self._parameters.names
        return last[0] if last and written not in names and last[0] in names else written

    def _parse_quoted_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, chunk = self._name_scanner.read(text, pos)
        self._argument += chunk
        if self._name_scanner.marker:
            self._state = PythonicReader._parse_value_start
        return pos, ReadStatus.MORE

    def _parse_value_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        # The members of `**{...}` and `**dict(...)` are arguments.
        if self._argument in ("**", "**dict") and text[pos] in "({":
            self._closers.append(CLOSERS[text[pos]])
            self._state = PythonicReader._parse_argument_start
            return pos + 1, ReadStatus.MORE
        if text[pos] not in ":=":
            self._skipped.append(f" {self._argument} ")
            self._state = PythonicReader._parse_argument_start
            return pos, ReadStatus.MORE
        self._append_text(self._writer.begin_argument(self._argument))
        is_text = bool(self._syntax.string_marker) and (
            self._parameters.find_types(self._argument) == ("string",)
        )
        self._value = PythonicValueReader(
            self._compiled.string_syntax,
            self._closers,
            self._parameters.names if self._n_missing_commas < _MAX_MISSING_COMMAS else (),
            words_are_text=is_text,
        )
        self._state = PythonicReader._parse_value
        return pos + 1, ReadStatus.MORE

    def _parse_value(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        value = self._value
        was_string = value.is_string
        pos, status = value.read(text, pos)
        self._append_value(was_string=was_string)
        if status is ReadStatus.MORE:
            return pos, status
        if value.is_string:
            self._append_text(self._writer.end_string())
        self._skipped += value.skipped
        self._state = PythonicReader._parse_argument_start
        self._n_missing_commas += value.unread[:1].isidentifier()
        _, status = self.read(value.unread, 0)
        return pos, status

    def _append_value(self, *, was_string: bool) -> None:
        if self._value.is_string and not was_string:
            self._append_text(self._writer.begin_string())
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

    @property
    def skipped(self) -> str:
        return " ".join("".join(self._skipped).split())

    def take_arguments(self) -> str:
        arguments = "".join(self._chunks)
        self._chunks.clear()
        return arguments

    def finish(self, *, is_truncated: bool) -> None:
        if self.is_complete or not self.has_begun:
            return
        value = self._value
        if self._state is PythonicReader._parse_value:
            was_string = value.is_string
            if is_truncated:
                value.flush()
            else:
                value.close()
            self._append_value(was_string=was_string)
            if value.is_string and not is_truncated:
                self._append_text(self._writer.end_string())
        if not is_truncated:
            self._close_call()
