"""Call syntaxes with JSON arguments: `{"name": "f", "arguments": {"x": 1}}` or
`f<separator>{"x": 1}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ..core.message import Tool
from ..core.syntax import FreeText, JsonPiece, LiteralText, SyntaxPiece
from .call_names import NameReader, check_name
from .call_reader import CallReader
from .json_call_reader import ArgumentsReader, JsonCallReader
from .json_codec import encode
from .json_scanner import ReadStatus
from .prefix_matcher import PrefixMatcher, PrefixResult
from .tool_parameters import build_arguments_schema

ARGUMENT_KEYS = ("arguments", "parameters")


class JsonObjectSyntax(Struct, frozen=True):
    """Calls as JSON objects.

    name_key: key of the function's name.
    argument_keys: keys of its arguments; the first is used for enforced calls.
    is_bare: no delimiter precedes the call, so an object that begins with another key
        is not a call.
    number_key: key of the call's number, a string and the first member of enforced
        calls; "" for none.
    """

    name_key: str = "name"
    argument_keys: tuple[str, ...] = ARGUMENT_KEYS
    is_bare: bool = False
    number_key: str = ""

    def compile(self, openers: tuple[str, ...], closers: tuple[str, ...]) -> JsonObjectSyntax:  # noqa: ARG002
        return self

    @property
    def markers(self) -> tuple[str, ...]:
        return ()

    @property
    def end_markers(self) -> tuple[str, ...]:
        return ()

    def can_begin_with(self, char: str) -> bool:
        return char == "{"

    def list_heads(self, name: str) -> Sequence[str]:
        return [
            f"{{{space}{encode(self.name_key)}{colon}{encode(name)}"
            for space in ("", " ", "\n", "\n  ", "\n    ")
            for colon in (": ", ":")
        ]

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        first_keys = (
            (self.name_key, *self.argument_keys, "type", "id", "function") if self.is_bare else None
        )
        return JsonCallReader(tools, (self.name_key,), self.argument_keys, first_keys)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        # A delimiter token in a name would end the call; escaped, it is the same JSON
        # string but not that token.
        name = encode(tool.name).replace("<", "\\u003c")
        remainder = f"{encode(self.name_key)}: {name}, {encode(self.argument_keys[0])}: "
        arguments = JsonPiece(build_arguments_schema(tool))
        if not self.number_key:
            return LiteralText("{" + remainder), arguments, LiteralText("}")
        number = FreeText(f'", {remainder}', pattern="[0-9]{1,2}")
        return (
            LiteralText("{" + f'{encode(self.number_key)}: "'),
            number,
            arguments,
            LiteralText("}"),
        )


class NamePrefixedSyntax(Struct, frozen=True):
    """Calls with the name before the JSON arguments.

    separators: allowed between name and arguments, "" for none; the first is used for
        enforced calls.
    name_prefix: precedes every name; "" for none.
    padding: texts before and after the separator of enforced calls.
    id_marker: the marker between the name and a call id; "" for none.
    is_numbered: the name is written `functions.NAME:3`, which is also the call's id.
    """

    separators: tuple[str, ...]
    name_prefix: str = ""
    padding: tuple[str, str] = ("", "")
    id_marker: str = ""
    is_numbered: bool = False

    def compile(self, openers: tuple[str, ...], closers: tuple[str, ...]) -> NamePrefixedSyntax:  # noqa: ARG002
        return self

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.name_prefix, *self.markers_behind_name)))

    @property
    def markers_behind_name(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.separators, self.id_marker)))

    @property
    def end_markers(self) -> tuple[str, ...]:
        return ("```",) if self.separators[0].startswith("```") else ()

    def can_begin_with(self, char: str) -> bool:
        return (
            self.name_prefix.startswith(char) if self.name_prefix else char.isalnum() or char == "_"
        )

    def list_heads(self, name: str) -> Sequence[str]:
        if self.is_numbered:
            return (f"functions.{name}:",)
        return [self.name_prefix + name + (separator or "{") for separator in self.separators]

    def build_reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return NamePrefixedReader(self, tools)

    def build_pieces(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        separator = self.separators[0].join(self.padding)
        name = check_name(tool.name)
        if self.is_numbered:
            header = (
                LiteralText(f"{self.name_prefix}functions.{name}:"),
                FreeText(separator, pattern="[0-9]{1,2}"),
            )
        else:
            header = (LiteralText(f"{self.name_prefix}{name}{separator}"),)
        return *header, JsonPiece(build_arguments_schema(tool))


class NamePrefixedReader:
    """Reads prefix, name, optional id and separator, and then the arguments with
    `ArgumentsReader`.
    """

    end_marker = ""
    awaits_delimiter = False
    resuming_markers: tuple[str, ...] = ()
    skipped = ""

    def __init__(self, syntax: NamePrefixedSyntax, tools: Mapping[str, Tool]) -> None:
        self._syntax = syntax
        self._tools = tools
        self._name_reader = NameReader()
        self._id_reader = NameReader()
        self._arguments_reader: ArgumentsReader | None = None
        self._prefix_matcher = PrefixMatcher((syntax.name_prefix,))
        self._state: Callable[[NamePrefixedReader, str, int], tuple[int, ReadStatus]] = (
            NamePrefixedReader._parse_prefix
            if syntax.name_prefix
            else NamePrefixedReader._parse_name
        )

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            if self._arguments_reader is not None:
                return self._arguments_reader.read(text, pos)
            pos, status = self._state(self, text, pos)
        return pos, status

    def _parse_prefix(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.MATCHED:
            self._state = NamePrefixedReader._parse_name
        return pos, ReadStatus.INVALID if result is PrefixResult.NO_MATCH else ReadStatus.MORE

    def _parse_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, is_complete = self._name_reader.read(text, pos)
        if not is_complete:
            return pos, ReadStatus.MORE
        if not self._name_reader.name:
            return pos, ReadStatus.INVALID
        self._state = NamePrefixedReader._parse_separator
        self._prefix_matcher = PrefixMatcher(self._syntax.markers_behind_name)
        return pos, ReadStatus.MORE

    def _parse_separator(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        match result:
            case PrefixResult.INCOMPLETE:
                return pos, ReadStatus.MORE
            case PrefixResult.MATCHED if self._prefix_matcher.marker == self._syntax.id_marker:
                self._state = NamePrefixedReader._parse_id
                return pos, ReadStatus.MORE
            case PrefixResult.NO_MATCH if (
                self._prefix_matcher.matched
                or "" not in self._syntax.separators
                or text[pos] != "{"
            ):
                return pos, ReadStatus.INVALID
            case _:
                self._begin_arguments()
                return pos, ReadStatus.MORE

    def _parse_id(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, is_complete = self._id_reader.read(text, pos)
        if is_complete:
            self._state = NamePrefixedReader._parse_separator
            self._prefix_matcher = PrefixMatcher(self._syntax.markers_behind_name)
        return pos, ReadStatus.MORE

    def _begin_arguments(self) -> None:
        raw = name = self._name_reader.name
        id = self._id_reader.name or None
        if self._syntax.is_numbered:
            # Kimi K2 requires the id of a call in exactly this form in the next prompt,
            # so it is kept as written.
            prefix, colon, number = raw.rpartition(":")
            if colon and number.isdecimal():
                name = prefix.removeprefix("functions.")
                id = raw
        self._arguments_reader = ArgumentsReader(name, self._tools.get(name), id)

    def is_plain_continuation(self, text: str) -> bool:
        return self._arguments_reader is not None and self._arguments_reader.is_plain_continuation(
            text
        )

    def take_arguments(self) -> str:
        return "" if self._arguments_reader is None else self._arguments_reader.take_arguments()

    def finish(self, *, is_truncated: bool) -> None:
        """End the call. A name alone is a call without arguments if the separator may
        be empty.
        """
        is_bare = (
            "" in self._syntax.separators
            and not self._syntax.name_prefix
            and not self._prefix_matcher.matched
        )
        if self._arguments_reader is None and is_bare and self._name_reader.name in self._tools:
            self._begin_arguments()
            assert self._arguments_reader is not None
            # The client parses arguments as JSON, so a call without any has an empty
            # object.
            self._arguments_reader.read("{}", 0)
        elif self._arguments_reader is not None:
            self._arguments_reader.finish(is_truncated=is_truncated)

    @property
    def has_begun(self) -> bool:
        return self._arguments_reader is not None and self._arguments_reader.has_begun

    @property
    def is_undeclared(self) -> bool:
        return self._arguments_reader is not None and self._arguments_reader.is_undeclared

    @property
    def is_complete(self) -> bool:
        return self._arguments_reader is not None and self._arguments_reader.is_complete

    @property
    def name(self) -> str:
        return "" if self._arguments_reader is None else self._arguments_reader.name

    @property
    def is_custom(self) -> bool:
        return self._arguments_reader is not None and self._arguments_reader.is_custom

    @property
    def id(self) -> str | None:
        return None if self._arguments_reader is None else self._arguments_reader.id
