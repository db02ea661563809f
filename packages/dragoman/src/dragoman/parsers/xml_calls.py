"""Tool calls with each argument between tags:
`<function=f><parameter=x>1</parameter></function>`.

A value is text, whose type is that of the tool's schema. Strings stream, as do objects
and arrays, which are JSON; other values are converted when they are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from ..core.message import CustomTool, Tool
from ..core.syntax import (
    FreeText,
    JsonPiece,
    LiteralText,
    OptionalPieces,
    RepeatedPieces,
    SyntaxPiece,
)
from .aho_corasick import AhoCorasick, MarkerScanner
from .argument_pieces import build_free_text, build_one_of, check_free_of_markers, list_unenforced
from .argument_writer import ArgumentWriter, build_argument_writer
from .call_names import NameReader, check_name
from .call_reader import CallReader
from .json_codec import decode, encode
from .json_scanner import ReadStatus, ValueReader
from .prefix_matcher import PrefixMatcher, PrefixResult
from .schema_alternatives import Schema, expand_alternatives
from .schema_types import find_schema_types
from .text_conversion import coerce, guess, match_number
from .tool_parameters import ToolParameters, read_enforceable_parameters, read_parameters

_CDATA_START = "<![CDATA["
_CDATA_END = "]]>"


class XmlTagSyntax(Struct, frozen=True):
    """The tags of a call syntax.

    name_suffix: follows the function's name.
    key_tag: precedes the name of an argument.
    key_end_tags: (text, kind) of each tag that may follow the name. The kind is True if
    the value is text, False if it is JSON, a JSON type, or None if the schema decides.
    value_end_tag: follows the value.
    end_tag: ends the call.
    value_tag: precedes the value; "" for none.
    line_break: white space after the name and every argument of enforced calls.
    tag_separator: white space between the two tags of an argument of enforced calls.
    value_padding: white space on both sides of a value of enforced calls. If set, a
    newline there is never part of the value.
    more_key_end_tags: also read after a name, but not enforced.
    has_unmistakable_tags: the next tag ends a value without an end tag, even in the
        middle of a line.
    untyped_is_text: a value whose type the schema does not define is a string, even if
        it is valid JSON.
    has_escaped_names: names are written with `&quot;` and `&amp;`.
    number_suffix: follows the call's number, which then follows `name_suffix`; "" for
        calls without a number.
    has_cdata: values may be enclosed in `<![CDATA[` and `]]>`.
    spliced_keys: keys under which models write one object of all arguments (as in
    vLLM), unless the tool declares an argument of that name.
    """

    name_suffix: str
    key_tag: str
    key_end_tags: tuple[tuple[str, bool | str | None], ...]
    value_end_tag: str
    end_tag: str
    value_tag: str = ""
    line_break: str = "\n"
    tag_separator: str = ""
    value_padding: str = ""
    more_key_end_tags: tuple[str, ...] = ()
    has_unmistakable_tags: bool = False
    untyped_is_text: bool = False
    has_escaped_names: bool = False
    number_suffix: str = ""
    has_cdata: bool = False
    spliced_keys: tuple[str, ...] = ()

    def compile(self, outer_markers: tuple[str, ...]) -> CompiledXmlTagSyntax:
        return CompiledXmlTagSyntax(self, outer_markers)


class CompiledXmlTagSyntax:
    """A `CallSyntax` of calls with tags.

    outer_markers: delimiters that end a call without its end tag.
    """

    def __init__(self, syntax: XmlTagSyntax, outer_markers: tuple[str, ...]) -> None:
        self.syntax = syntax
        self.outer_markers = outer_markers
        self.key_end_tags = {
            text: _is_text(kind)
            for text, kind in (
                *syntax.key_end_tags,
                *((tag, None) for tag in syntax.more_key_end_tags),
            )
        }
        self.number_patterns = AhoCorasick([syntax.number_suffix]) if syntax.number_suffix else None
        self.key_patterns = AhoCorasick(list(self.key_end_tags))
        next_tags = ("\n" + syntax.key_tag, "\n" + syntax.end_tag)
        if syntax.has_unmistakable_tags:
            next_tags = (*next_tags, syntax.key_tag, syntax.end_tag)
        value_ends = (syntax.value_end_tag, syntax.value_padding + syntax.value_end_tag)
        # If a model forgets the closing tag, the value ends at the next tag. Where that
        # tag could also be part of a value, it must begin a line.
        self.value_patterns = AhoCorasick([*value_ends, *next_tags])
        self.cdata_patterns = AhoCorasick([_CDATA_END + end for end in value_ends])
        self.forbidden_in_values = (*next_tags, syntax.value_end_tag)

    @property
    def markers(self) -> tuple[str, ...]:
        syntax = self.syntax
        texts = (
            syntax.name_suffix,
            syntax.number_suffix,
            syntax.key_tag,
            *(text for text, _ in syntax.key_end_tags),
            syntax.value_tag,
            syntax.value_end_tag,
            syntax.end_tag,
        )
        return tuple(filter(None, texts))

    @property
    def end_markers(self) -> tuple[str, ...]:
        return (self.syntax.end_tag,)

    def can_begin_with(self, char: str) -> bool:  # noqa: ARG002
        return False

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return XmlTagReader(self, tools)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        parameters = read_enforceable_parameters(tool)
        syntax = self.syntax
        arguments: list[SyntaxPiece] = []
        for parameter in parameters.properties:
            name = check_free_of_markers(parameter.name, [*self.key_end_tags, "\n"])
            if syntax.has_escaped_names:
                name = name.replace("&", "&amp;").replace('"', "&quot;")
            schemas, unenforced = expand_alternatives(parameter.schema)
            values = build_one_of(list(self._build_values(schemas)))
            pieces = LiteralText(syntax.key_tag + name, unenforced), *values
            arguments += pieces if parameter.required else (OptionalPieces(pieces),)
        if parameters.allows_additional:
            ending = next(text for text, kind in syntax.key_end_tags if _is_text(kind) is not False)
            prefix, suffix = self._find_surroundings(ending)
            key = FreeText(prefix, pattern="[A-Za-z_][A-Za-z0-9_]*")
            any_argument = (
                LiteralText(syntax.key_tag),
                key,
                FreeText(suffix, self.forbidden_in_values),
            )
            arguments.append(RepeatedPieces(any_argument))
        number = (
            (FreeText(syntax.number_suffix, pattern="[0-9]{1,2}"),) if syntax.number_suffix else ()
        )
        return (
            LiteralText(check_name(tool.name) + syntax.name_suffix, parameters.unenforced),
            *number,
            LiteralText(syntax.line_break),
            *arguments,
            LiteralText(syntax.end_tag),
        )

    def _build_values(self, schemas: list[Schema]) -> Iterator[tuple[SyntaxPiece, ...]]:
        """Yield, for each tag that may end the key, the pieces of each value that may
        follow it.
        """
        for ending, kind in self.syntax.key_end_tags:
            is_text = _is_text(kind)
            prefix, suffix = self._find_surroundings(ending)
            for schema in schemas:
                # The tags have no type `integer`, only `number`.
                if (
                    isinstance(kind, str)
                    and not is_text
                    and kind
                    not in [
                        "number" if name == "integer" else name
                        for name in find_schema_types(schema)
                    ]
                ):
                    continue
                match schema:
                    case {"const": str() as constant} if is_text is not False:
                        yield (
                            LiteralText(
                                prefix
                                + check_free_of_markers(constant, self.forbidden_in_values)
                                + suffix
                            ),
                        )
                    case {"const": str()} | {"type": "string"} if is_text is False:
                        pass
                    case {"type": "string"}:
                        yield (
                            LiteralText(prefix),
                            build_free_text(schema, suffix, self.forbidden_in_values),
                        )
                    case {"type": _} | {"const": _} if is_text is not True:
                        yield (
                            LiteralText(prefix),
                            JsonPiece(encode(schema), allows_any_type=True),
                            LiteralText(suffix),
                        )
                    case {"type": _} | {"const": _}:
                        pass
                    case _ if is_text is not False:
                        text = FreeText(
                            suffix, self.forbidden_in_values, unenforced=list_unenforced(schema)
                        )
                        yield LiteralText(prefix), text
                    case _:
                        pass

    def _find_surroundings(self, ending: str) -> tuple[str, str]:
        syntax = self.syntax
        tag = syntax.tag_separator + syntax.value_tag if syntax.value_tag else ""
        return (
            ending + tag + syntax.value_padding,
            syntax.value_padding + syntax.value_end_tag + syntax.line_break,
        )


def _is_text(kind: bool | str | None) -> bool | None:
    return kind == "string" if isinstance(kind, str) else kind


def _unescape(name: str) -> str:
    return name.replace("&quot;", '"').replace("&amp;", "&")


class XmlTagReader:
    """Reads one call: its name, and then its arguments, each a key and a value."""

    id: str | None = None

    def __init__(self, compiled: CompiledXmlTagSyntax, tools: Mapping[str, Tool]) -> None:
        self._compiled = compiled
        self._syntax = compiled.syntax
        self._tools = tools
        self._state: Callable[[XmlTagReader, str, int], tuple[int, ReadStatus]] = (
            XmlTagReader._parse_name
        )
        self._name_reader = NameReader()
        self._prefix_matcher = PrefixMatcher(())
        self._scanner = MarkerScanner(compiled.key_patterns)
        self._key: list[str] = []
        self._types: tuple[str, ...] = ()
        self._spliced_key = ""  # The key of an object of all arguments, while it is being read.
        self._cdata_read = 0
        self._after_cdata_start = self._state
        self._value = ValueReader()
        self._chunks: list[str] = []
        self._parameters = ToolParameters((), allows_additional=True)
        self._writer: ArgumentWriter = build_argument_writer(is_custom=False)
        self._output: list[str] = []
        self._may_skip_newline = False
        self.name = self.end_marker = ""
        self.has_begun = self.is_undeclared = self.is_complete = self.is_custom = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            pos, status = self._state(self, text, pos)
        if status is ReadStatus.INVALID:
            self.finish()
        return pos, status

    def _parse_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, is_complete = self._name_reader.read(text, pos)
        if is_complete:
            self._state = XmlTagReader._parse_name_suffix
            self._prefix_matcher = PrefixMatcher((self._syntax.name_suffix,))
        return (
            pos,
            ReadStatus.INVALID if is_complete and not self._name_reader.name else ReadStatus.MORE,
        )

    def _parse_name_suffix(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        result = PrefixResult.MATCHED
        if self._syntax.name_suffix:
            pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.MATCHED and self._compiled.number_patterns is not None:
            self._scanner = MarkerScanner(self._compiled.number_patterns)
            self._state = XmlTagReader._parse_number
        elif result is PrefixResult.MATCHED:
            self._begin_call()
        return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE

    def _parse_number(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, number = self._scanner.read(text, pos)
        if number and not number.isdecimal():
            return pos, ReadStatus.INVALID
        if self._scanner.marker:
            self._begin_call()
        return pos, ReadStatus.MORE

    def _begin_call(self) -> None:
        self.name = (
            _unescape(self._name_reader.name)
            if self._syntax.has_escaped_names
            else self._name_reader.name
        )
        tool = self._tools.get(self.name)
        self.is_undeclared = tool is None
        self.has_begun = tool is not None
        if tool is not None:
            self.is_custom = isinstance(tool, CustomTool)
            self._writer = build_argument_writer(is_custom=self.is_custom)
            self._parameters = read_parameters(tool)
        self._expect_argument()

    def _expect_argument(self) -> None:
        self._state = XmlTagReader._parse_tag
        self._prefix_matcher = PrefixMatcher(
            (self._syntax.key_tag, self._syntax.end_tag, *self._compiled.outer_markers)
        )

    def _parse_tag(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is not PrefixResult.MATCHED:
            return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE
        return pos, self._handle_tag(self._prefix_matcher.marker)

    def _handle_tag(self, marker: str) -> ReadStatus:
        """Handle a tag between arguments: another argument begins, or the call ends."""
        if marker == self._syntax.key_tag:
            self._state = XmlTagReader._parse_key
            self._scanner = MarkerScanner(self._compiled.key_patterns)
            self._key.clear()
            return ReadStatus.MORE
        self.is_complete = True
        self.end_marker = "" if marker == self._syntax.end_tag else marker
        self._append_text(self._writer.finish())
        return ReadStatus.CLOSE

    def _parse_key(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, key = self._scanner.read(text, pos)
        self._key.append(key)
        if not self._scanner.marker:
            return pos, ReadStatus.MORE
        key = "".join(self._key).strip()
        is_text = self._compiled.key_end_tags[self._scanner.marker]
        key = _unescape(key) if self._syntax.has_escaped_names else key
        self._types = self._parameters.find_types(key)
        # A tag that marks a string counts only if the schema allows one, as clients
        # validate arguments by the schema.
        if (is_text and (not self._types or "string" in self._types)) or (
            not self._types and self._syntax.untyped_is_text
        ):
            self._types = ("string",)
        # The key holds an object of all arguments only if the tool declares other
        # arguments, but not this one.
        declared = self._parameters.names
        is_spliced = key in self._syntax.spliced_keys and bool(declared) and key not in declared
        self._spliced_key = key if is_spliced else ""
        if self._spliced_key:
            self._types = ()
        else:
            self._append_text(self._writer.begin_argument(key))
        if self._syntax.value_tag:
            self._state = XmlTagReader._parse_value_start
            self._prefix_matcher = PrefixMatcher((self._syntax.value_tag,))
        else:
            self._begin_value()
        return pos, ReadStatus.MORE

    def _parse_value_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.MATCHED:
            self._begin_value()
        return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE

    def _begin_value(self) -> None:
        self._scanner = MarkerScanner(self._compiled.value_patterns)
        self._may_skip_newline = bool(self._syntax.value_padding)
        self._chunks.clear()
        if self._types == ("string",):
            self._state = XmlTagReader._parse_string
            self._append_text(self._writer.begin_string())
        # Only these types are certainly JSON; "object or string" must be complete
        # before its type is known.
        elif self._types and not set(self._types) - {"object", "array"}:
            self._state = XmlTagReader._parse_json_start
            self._value = ValueReader()
        else:
            self._state = XmlTagReader._parse_value
        if self._syntax.has_cdata:
            self._cdata_read = 0
            self._after_cdata_start = self._state
            self._state = XmlTagReader._parse_cdata_start

    def _parse_cdata_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read the start of a CDATA section, if there is one; any other text belongs to
        the value.
        """
        while pos < len(text) and _CDATA_START.startswith(text[pos], self._cdata_read):
            pos = pos + 1
            self._cdata_read = self._cdata_read + 1
            if self._cdata_read == len(_CDATA_START):
                self._scanner = MarkerScanner(self._compiled.cdata_patterns)
                self._state = self._after_cdata_start
                return pos, ReadStatus.MORE
        if pos < len(text):
            self._state = self._after_cdata_start
            replay_pos = 0
            while replay_pos < self._cdata_read:  # The text has no tag, so no value ends in it.
                replay_pos, _ = self._state(self, _CDATA_START[: self._cdata_read], replay_pos)
        return pos, ReadStatus.MORE

    def _parse_string(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if self._may_skip_newline:
            self._may_skip_newline = False
            if text[pos] == "\n":
                return pos + 1, ReadStatus.MORE
        pos, chunk = self._scanner.read(text, pos)
        self._append_text(self._writer.write_text(chunk))
        if self._scanner.marker:
            self._append_text(self._writer.end_string())
        return self._end_value(pos)

    def _parse_json_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        self._state = XmlTagReader._parse_json if text[pos] in "{[" else XmlTagReader._parse_value
        return pos, ReadStatus.MORE

    def _parse_json(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a JSON value; a tag inside its strings is plain text."""
        start = pos
        pos, status = self._value.read(text, pos)
        self._append_text(self._writer.write_json(text[start:pos]))
        if status is not ReadStatus.MORE:
            self._state = XmlTagReader._parse_json_end
        return pos, ReadStatus.MORE

    def _parse_json_end(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read up to the end tag after a JSON value. The rest of an invalid value
        passes unchanged.
        """
        pos, chunk = self._scanner.read(text, pos)
        self._append_text(self._writer.write_json(chunk))
        return self._end_value(pos)

    def _parse_value(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, chunk = self._scanner.read(text, pos)
        self._chunks.append(chunk)
        if not self._scanner.marker:
            return pos, ReadStatus.MORE
        raw = "".join(self._chunks)
        if self._syntax.value_padding:
            raw = raw.removeprefix("\n")
        if self._spliced_key:
            try:
                arguments = decode(raw)
            except ValueError:
                arguments = None
            if isinstance(arguments, dict) and arguments.keys() <= self._parameters.names:
                for key, value in arguments.items():
                    self._append_text(
                        self._writer.begin_argument(key) + self._writer.write_json(encode(value))
                    )
                return self._end_value(pos)
            # The value is not an object of all arguments, so it is an argument itself.
            self._append_text(self._writer.begin_argument(self._spliced_key))
        # The value is converted to a type of the schema if possible, else to a string.
        # A number keeps its digits: a float would change 1.10 or 10000000000000001.
        writer = self._writer
        digits = match_number(raw, self._types)
        value = coerce(raw, self._types) if self._types else guess(raw)
        if digits is not None:
            self._append_text(writer.write_json(digits))
        elif isinstance(value, str):
            self._append_text(
                writer.begin_string() + writer.write_text(value) + writer.end_string()
            )
        else:
            self._append_text(writer.write_json(encode(value)))
        return self._end_value(pos)

    def _end_value(self, pos: int) -> tuple[int, ReadStatus]:
        if not self._scanner.marker:
            return pos, ReadStatus.MORE
        marker = self._scanner.marker.removeprefix(_CDATA_END).removeprefix("\n")
        self._expect_argument()
        return pos, ReadStatus.MORE if marker == self._syntax.value_end_tag else self._handle_tag(
            marker
        )

    @property
    def awaits_delimiter(self) -> bool:
        return self._state is XmlTagReader._parse_tag

    def _append_text(self, text: str) -> None:
        if self.has_begun and text:
            self._output.append(text)

    def is_plain_continuation(self, text: str) -> bool:
        # Text that JSON has to escape is changed by the writer, so it cannot be passed
        # on as it arrived.
        return (
            self._state is XmlTagReader._parse_string
            and not self._may_skip_newline
            and self._scanner.is_plain_continuation(text)
            and self._writer.write_text(text) == text
        )

    def take_arguments(self) -> str:
        arguments = "".join(self._output)
        self._output.clear()
        return arguments

    def finish(self) -> None:
        if self.is_complete:
            return
        pending = self._scanner.flush()
        if self._state is XmlTagReader._parse_cdata_start:
            pending = _CDATA_START[: self._cdata_read]
            self._state = self._after_cdata_start
        if self._state is XmlTagReader._parse_string:
            self._append_text(self._writer.write_text(pending))
        elif self._state in (XmlTagReader._parse_value, XmlTagReader._parse_json_end):
            self._append_text(self._writer.write_json("".join(self._chunks) + pending))
