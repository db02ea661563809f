"""Tool calls that look like Python: `f(x=1, y="z")`, or
`call:f{x:1,y:<escape>z<escape>}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from .pythonic_values import NO_MARKERS, PythonicValueReader, StringSyntax
from .schema_alternatives import Schema, expand_alternatives
from .tool_parameters import ToolParameters, read_enforceable_parameters, read_parameters

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
