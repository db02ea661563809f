"""Reads a call whose arguments stand between tags.

A value is text, whose type is that of the tool's schema. Strings stream; other values
are converted when they are complete, so the arguments are always valid JSON.

Models make mistakes between tags: they close one twice, add words or a comment, or
write a tag of another format. Such text is skipped up to the next tag of this format,
so a mistake costs one argument at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ..core.json_types import JsonObject, JsonValue
from ..core.message import CustomTool, Tool
from .aho_corasick import MarkerScanner
from .argument_writer import ArgumentWriter, build_argument_writer
from .call_names import NameReader
from .json_codec import decode, encode
from .json_scanner import ReadStatus, ValueReader
from .prefix_matcher import PrefixMatcher, PrefixResult
from .pythonic_values import convert_literal
from .text_conversion import coerce, guess, match_number
from .tool_parameters import ToolParameters, read_parameters
from .xml_tags import CDATA_END, CDATA_START, QUOTES, TagPatterns, unescape_name

_MAX_HEAD_CHARS = 256
"""Maximum characters between a function's name and its first tag. Where more follow,
the text only mentions the function.
"""
_KEY_WITH_ATTRIBUTES = re.compile(r"""([^"'\s]+)["']?\s+[\w-]+\s*=.*""", re.DOTALL)


class XmlTagReader:
    """Reads one call: its name, and then its arguments, each a key and a value."""

    id: str | None = None

    def __init__(self, patterns: TagPatterns, tools: Mapping[str, Tool]) -> None:
        self._patterns = patterns
        self._syntax = patterns.syntax
        self._tools = tools
        self._state: Callable[[XmlTagReader, str, int], tuple[int, ReadStatus]] = (
            XmlTagReader._parse_name
        )
        self._name_reader = NameReader()
        self._prefix_matcher = PrefixMatcher(())
        self._scanner = MarkerScanner(patterns.between)
        self._parameters = ToolParameters((), allows_additional=True)
        self._value_patterns = patterns.between
        self._writer: ArgumentWriter = build_argument_writer(is_custom=False)
        self._output: list[str] = []
        self._skipped: list[str] = []
        self._skipped_length = 0
        self._has_ended = False  # The end tag came last.
        self._keys: set[str] = set()
        self._quote = ""
        self._key = ""
        self._chunks: list[str] = []
        self._types: tuple[str, ...] = ()
        self._has_value_tag = True
        self._is_streamed = False
        self._may_skip_newline = False
        self._cdata_read = 0
        self._json = _OpenString()
        self._held = ["", ""]  # A tag that may end the value, and what follows it.
        self.name = self.end_marker = ""
        self.has_begun = self.is_undeclared = self.is_complete = self.is_custom = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            pos, status = self._state(self, text, pos)
        return pos, status

    def _replay(self, text: str) -> None:
        """Read text again that was held back, in the current state."""
        pos = 0
        while pos < len(text):
            pos, _ = self._state(self, text, pos)

    def _parse_name(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, is_complete = self._name_reader.read(text, pos)
        if not is_complete:
            return pos, ReadStatus.MORE
        name = self._name_reader.name
        if not name and not self._quote and text[pos] in QUOTES:
            self._quote = text[pos]
            return pos + 1, ReadStatus.MORE
        if not name:
            return pos, ReadStatus.INVALID
        self._set_name(name)
        self._state = XmlTagReader._parse_head
        return pos, ReadStatus.MORE

    def _set_name(self, name: str) -> None:
        self.name = unescape_name(name) if self._syntax.has_escaped_names else name
        self.is_undeclared = self.name not in self._tools

    def _parse_head(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read up to the first tag behind the name. A name without one is no call."""
        pos = self._skip_text(text, pos)
        marker = self._scanner.marker
        if not marker:
            if self._read_head().startswith("{"):
                self._begin_call()
            is_long = self._skipped_length > _MAX_HEAD_CHARS and not self.has_begun
            return pos, ReadStatus.INVALID if is_long else ReadStatus.MORE
        if marker in self._patterns.openers and self._read_head() and not self.is_undeclared:
            return pos - len(marker), ReadStatus.INVALID
        self._begin_call()
        return pos, self._handle_tag(marker)

    def _read_head(self) -> str:
        """Return what stands between the name and the first tag, without the texts that
        belong there.
        """
        head = "".join(self._skipped).strip()
        for suffix in (self._syntax.name_suffix, self._syntax.name_suffix.removeprefix('"')):
            if suffix and head.startswith(suffix):
                head = head.removeprefix(suffix).lstrip()
        number, found, rest = head.partition(self._syntax.number_suffix or "\0")
        if found and number.isdecimal():
            head = rest.lstrip()
        return head.lstrip("\"'")

    def _begin_call(self) -> None:
        head = self._read_head()
        self._skipped = [head] if head else []
        tool = self._tools.get(self.name)
        self.has_begun = tool is not None
        self._state = XmlTagReader._parse_between
        if tool is not None:
            self.is_custom = isinstance(tool, CustomTool)
            self._writer = build_argument_writer(is_custom=self.is_custom)
            self._parameters = read_parameters(tool)
        self._value_patterns = self._patterns.build_value_patterns(self._parameters.names)

    def _skip_text(self, text: str, pos: int) -> int:
        pos, chunk = self._scanner.read(text, pos)
        self._skipped.append(chunk)
        self._skipped_length += len(chunk)
        return pos

    def _expect_tag(self) -> None:
        self._state = XmlTagReader._parse_between
        self._scanner = MarkerScanner(self._patterns.between)

    def _parse_between(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Skip what stands between two arguments and is no tag of this syntax."""
        pos = self._skip_text(text, pos)
        marker = self._scanner.marker
        return pos, self._handle_tag(marker) if marker else ReadStatus.MORE

    def _handle_tag(self, marker: str) -> ReadStatus:
        """Handle a tag between arguments: another argument begins, or the call ends."""
        if marker == self._patterns.key_mark:
            self._state = XmlTagReader._parse_key_quote
            self._has_ended = False
            self._quote = ""
            self._chunks.clear()
            return ReadStatus.MORE
        self._has_ended = marker == self._syntax.end_tag
        if self._has_ended:
            self._expect_tag()
        else:
            self.end_marker = marker
            self._close_call()
        return ReadStatus.CLOSE

    @property
    def resuming_markers(self) -> tuple[str, ...]:
        return (self._patterns.key_mark, self._syntax.end_tag) if self._has_ended else ()

    def _close_call(self) -> None:
        skipped = "".join(self._skipped).strip()
        # Models also write one object of all arguments instead of tags.
        arguments = None if self._keys else _decode_object(skipped)
        if arguments is not None:
            self._skipped.clear()
            for key, value in arguments.items():
                self._write(self._writer.begin_argument(key))
                self._write_value(value)
        self._write(self._writer.finish())
        self.is_complete = True

    def _parse_key_quote(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace() and text[pos] != "\n":
            return pos + 1, ReadStatus.MORE
        has_quote = text[pos] in QUOTES
        self._quote = text[pos] if has_quote else ""
        self._scanner = MarkerScanner(self._patterns.key_patterns[self._quote])
        self._state = XmlTagReader._parse_key
        return pos + has_quote, ReadStatus.MORE

    def _parse_key(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, chunk = self._scanner.read(text, pos)
        self._chunks.append(chunk)
        marker = self._scanner.marker
        if not marker:
            return pos, ReadStatus.MORE
        raw = "".join(self._chunks).strip()
        kinds = self._patterns.key_kinds
        if marker in kinds[self._quote]:
            self._begin_argument(raw, kinds[self._quote][marker])
            return pos, ReadStatus.MORE
        # The end of the key is missing.
        ending = next((end for end in kinds[""] if raw.endswith(end)), "")
        name = self._clean_key(raw.removesuffix(ending))
        if marker in ("\n", self._syntax.value_tag) and name in self._parameters.names:
            self._begin_argument(name, None)
            if marker == self._syntax.value_tag:
                self._begin_value(has_tag=True)
            return pos, ReadStatus.MORE
        self._skipped.append(f" {raw} ")
        self._expect_tag()
        return pos, self._handle_tag(marker) if marker in self._patterns.next_tags else (
            ReadStatus.MORE
        )

    def _clean_key(self, raw: str) -> str:
        """Return the name of an argument, without quotes or attributes that do not
        belong to it.
        """
        key = unescape_name(raw) if self._syntax.has_escaped_names else raw
        if key in self._parameters.names:
            return key
        attributes = _KEY_WITH_ATTRIBUTES.fullmatch(key)
        return (key if attributes is None else attributes[1]).strip("\"'")

    def _begin_argument(self, raw: str, is_text: bool | None) -> None:
        self._key = self._clean_key(raw)
        self._types = self._parameters.find_types(self._key)
        # A tag that marks a string counts only if the schema allows one, as clients
        # validate arguments by the schema.
        if (is_text and (not self._types or "string" in self._types)) or (
            not self._types and self._syntax.untyped_is_text
        ):
            self._types = ("string",)
        if self._syntax.value_tag:
            self._state = XmlTagReader._parse_value_start
            self._expect_value_tag()
        else:
            self._begin_value(has_tag=True)

    def _expect_value_tag(self) -> None:
        self._held = ["", ""]
        self._prefix_matcher = PrefixMatcher(
            (self._syntax.value_tag, *self._patterns.key_kinds[""])
        )

    def _parse_value_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        start = pos
        pos, result = self._prefix_matcher.read(text, pos)
        self._held[1] += text[start:pos]
        if result is PrefixResult.MATCHED and self._prefix_matcher.marker == self._syntax.value_tag:
            self._begin_value(has_tag=True)
        elif result is PrefixResult.MATCHED:
            self._expect_value_tag()
        elif result is PrefixResult.NO_MATCH:
            self._begin_value(has_tag=False)
            self._replay(self._held[1])
        return pos, ReadStatus.MORE

    def _begin_value(self, *, has_tag: bool) -> None:
        """Begin a value. Without its tag it is read to its end before it is written, as
        the tag may follow.
        """
        self._scanner = MarkerScanner(self._value_patterns)
        self._chunks.clear()
        self._json = _OpenString()
        self._has_value_tag = has_tag
        self._is_streamed = has_tag and self._types == ("string",) and not self._is_spliced
        self._may_skip_newline = bool(self._syntax.value_padding)
        self._state = XmlTagReader._parse_value
        if self._is_streamed:
            self._begin_output()
            self._write(self._writer.begin_string())
        if self._syntax.has_cdata:
            self._cdata_read = 0
            self._state = XmlTagReader._parse_cdata_start

    @property
    def _is_spliced(self) -> bool:
        """Whether the key may hold an object of all arguments: the tool declares other
        arguments, but not this one.
        """
        declared = self._parameters.names
        return (
            self._key in self._syntax.spliced_keys and self._key not in declared and bool(declared)
        )

    def _begin_output(self) -> None:
        self._keys.add(self._key)
        self._write(self._writer.begin_argument(self._key))

    def _parse_cdata_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read the start of a CDATA section, if there is one; any other text belongs to
        the value.
        """
        while pos < len(text) and CDATA_START.startswith(text[pos], self._cdata_read):
            pos = pos + 1
            self._cdata_read = self._cdata_read + 1
            if self._cdata_read == len(CDATA_START):
                self._scanner = MarkerScanner(self._patterns.cdata_patterns)
                self._state = XmlTagReader._parse_value
                return pos, ReadStatus.MORE
        if pos < len(text):
            self._state = XmlTagReader._parse_value
            self._replay(CDATA_START[: self._cdata_read])
        return pos, ReadStatus.MORE

    def _parse_value(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if self._may_skip_newline:
            self._may_skip_newline = False
            if text[pos] == "\n":
                return pos + 1, ReadStatus.MORE
        pos, chunk = self._scanner.read(text, pos)
        self._append_value(chunk)
        marker = self._scanner.marker
        return pos, self._handle_value_end(marker) if marker else ReadStatus.MORE

    def _append_value(self, text: str) -> None:
        if self._is_streamed:
            self._write(self._writer.write_text(text))
        elif text:
            self._chunks.append(text)
            self._json.read(text)

    def _handle_value_end(self, marker: str) -> ReadStatus:
        """Handle a tag in a value. It is the value's end, or text of the value."""
        is_cdata = marker.startswith(CDATA_END)
        bare = marker.removeprefix(CDATA_END).removeprefix("\n")
        is_value_end = bare == self._syntax.value_end_tag
        if self._json.is_open and is_value_end and not is_cdata:
            return self._expect_next_tag(marker)
        # JSON strings have no line breaks, so a tag within a line of one is its text.
        if self._json.is_open and not is_cdata and "\n" not in marker:
            return self._continue_value(marker)
        if marker in self._patterns.value_ends or is_cdata:
            self._end_value()
            return ReadStatus.MORE if is_value_end else self._handle_tag(bare)
        if bare in self._patterns.call_ends:
            return self._expect_next_tag(marker)
        key = self._clean_key(self._find_key(marker))
        if key in self._keys or key == self._key or self._may_mention_keys:
            return self._continue_value(marker)
        self._end_value()
        status = self._handle_tag(self._patterns.key_mark)
        self._replay(marker.removeprefix(self._patterns.key_mark))
        return status

    @property
    def _may_mention_keys(self) -> bool:
        """Whether a key tag in the middle of a line may be text of the value: it can be a
        string, and nothing behind the tag tells a key.
        """
        return not self._syntax.value_tag and (not self._types or "string" in self._types)

    def _continue_value(self, marker: str) -> ReadStatus:
        self._append_value(marker)
        self._scanner = MarkerScanner(self._value_patterns)
        return ReadStatus.MORE

    def _find_key(self, tag: str) -> str:
        """Return the name in a key tag, which the value's tag may follow."""
        rest = tag.removeprefix(self._patterns.key_mark)
        quote = rest[:1] if rest[:1] in QUOTES else ""
        names = (rest.partition(end)[0] for end in self._patterns.key_kinds[quote] if end in rest)
        return min(names, key=len).removeprefix(quote)

    def _expect_next_tag(self, marker: str) -> ReadStatus:
        """Hold a tag back that a value may mention: it ends the value only if another
        tag follows.
        """
        self._held = [marker, ""]
        self._prefix_matcher = PrefixMatcher(self._patterns.next_tags)
        self._state = XmlTagReader._parse_next_tag
        return ReadStatus.MORE

    def _parse_next_tag(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        start = pos
        pos, result = self._prefix_matcher.read(text, pos)
        self._held[1] += text[start:pos]
        if result is PrefixResult.MATCHED:
            self._end_value()
            return pos, self._handle_tag(self._prefix_matcher.marker)
        if result is PrefixResult.NO_MATCH:
            self._resume_value()
        return pos, ReadStatus.MORE

    def _resume_value(self) -> None:
        """Continue the value with the text that was held back."""
        self._state = XmlTagReader._parse_value
        self._scanner = MarkerScanner(self._value_patterns)
        self._append_value(self._held[0])
        self._replay(self._held[1])

    def _end_value(self) -> None:
        self._expect_tag()
        if self._is_streamed:
            self._write(self._writer.end_string())
            return
        raw = "".join(self._chunks)
        if not self._has_value_tag:
            raw = raw.rpartition(self._syntax.value_tag)[2].strip()
            if not raw:
                return
        if self._is_spliced or (self._types and not set(self._types) - {"object", "array"}):
            raw = _convert_python(raw)
        arguments = _decode_object(raw) if self._is_spliced else None
        if arguments is not None and arguments.keys() <= self._parameters.names:
            for key, value in arguments.items():
                self._key = key
                self._begin_output()
                self._write(self._writer.write_json(encode(value)))
            return
        self._begin_output()
        # The value is converted to a type of the schema if possible, else to a string.
        # A number keeps its digits: a float would change 1.10 or 10000000000000001.
        digits = match_number(raw, self._types)
        value = coerce(raw, self._types) if self._types else guess(raw)
        if digits is not None or isinstance(value, dict | list):
            self._write(self._writer.write_json(digits or raw.strip()))
        else:
            self._write_value(value)

    def _write_value(self, value: JsonValue) -> None:
        writer = self._writer
        if isinstance(value, str):
            self._write(writer.begin_string() + writer.write_text(value) + writer.end_string())
        else:
            self._write(writer.write_json(encode(value)))

    @property
    def awaits_delimiter(self) -> bool:
        return self._state is XmlTagReader._parse_between

    def _write(self, text: str) -> None:
        if self.has_begun and text:
            self._output.append(text)

    def is_plain_continuation(self, text: str) -> bool:
        # Text that JSON has to escape is changed by the writer, so it cannot be passed
        # on as it arrived.
        return (
            self._state is XmlTagReader._parse_value
            and self._is_streamed
            and not self._may_skip_newline
            and self._scanner.is_plain_continuation(text)
            and self._writer.write_text(text) == text
        )

    @property
    def skipped(self) -> str:
        return " ".join("".join(self._skipped).split())

    def take_arguments(self) -> str:
        arguments = "".join(self._output)
        self._output.clear()
        return arguments

    def finish(self, *, is_truncated: bool) -> None:
        if self.is_complete:
            return
        is_truncated = is_truncated and not self._has_ended
        if self._state is XmlTagReader._parse_head and not is_truncated:
            self._finish_head()
        elif self._state is XmlTagReader._parse_value_start:
            self._begin_value(has_tag=False)
            self._replay(self._held[1])
        elif self._state is XmlTagReader._parse_cdata_start:
            self._state = XmlTagReader._parse_value
            self._replay(CDATA_START[: self._cdata_read])
        elif self._state is XmlTagReader._parse_next_tag and is_truncated:
            self._resume_value()
        if self._state is XmlTagReader._parse_value:
            pending = self._scanner.flush()
            is_padding = pending == self._syntax.value_padding and not is_truncated
            self._append_value("" if is_padding else pending)
        if is_truncated:
            self._write_truncated_value()
        elif self.has_begun:
            if self._state in (XmlTagReader._parse_value, XmlTagReader._parse_next_tag):
                self._end_value()
            self._close_call()

    def _finish_head(self) -> None:
        """Begin a call of which only the name was written, if nothing else follows it."""
        self._skipped.append(self._scanner.flush())
        if not self._read_head() and not self.is_undeclared:
            self._begin_call()

    def _write_truncated_value(self) -> None:
        if self._state is XmlTagReader._parse_value and not self._is_streamed:
            self._begin_output()
            self._write(self._writer.write_json("".join(self._chunks)))


class _OpenString:
    """Whether a JSON value has ended inside a string so far; text that is no object or
    array never has.
    """

    def __init__(self) -> None:
        self._reader: ValueReader | None = None
        self._is_json: bool | None = None

    def read(self, text: str) -> None:
        stripped = text if self._is_json else text.lstrip()
        if self._is_json is None and stripped:
            self._is_json = stripped[0] in "{["
            self._reader = ValueReader()
        if self._is_json and self._reader is not None:
            _, status = self._reader.read(stripped, 0)
            self._is_json = status is ReadStatus.MORE

    @property
    def is_open(self) -> bool:
        return bool(self._is_json) and self._reader is not None and self._reader.is_in_string


def _convert_python(text: str) -> str:
    """Return an object or array that is written in Python as JSON, and any other text
    unchanged.
    """
    try:
        decode(text)
    except ValueError:
        if text.lstrip().startswith(("{", "[", "(")):
            return convert_literal(text) or text
    return text


def _decode_object(text: str) -> JsonObject | None:
    try:
        value = decode(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
