"""Converts one value of a pythonic call to JSON incrementally. Nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from .arguments import escape_json
from .base import PrefixMatcher, PrefixResult
from .json_text import PYTHON_ESCAPES, ReadStatus, StringDecoder
from .json_values import decode, encode
from .multi_pattern import AhoCorasick, MarkerScanner

_CONSTANTS = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_STRING_SPECIALS = MappingProxyType({"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')})
_CLOSERS = MappingProxyType({"(": ")", "[": "]", "{": "}"})
_KEY_TERMINATORS = re.compile(r"[:,\]}]")
# An automaton must have a text; this one is in no response.
NO_MARKERS = AhoCorasick(["\0"])
_JSON_CLOSERS = MappingProxyType({")": "]", "]": "]", "}": "}", "} ": "]"})
"""The JSON bracket for a closing bracket; "} " closes a set."""
_BEHIND_STRINGS = frozenset(",:)]};")


class StringSyntax:
    """How strings are written. marker: delimits strings, "" for none; with one, words need no quotes."""

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.marker_patterns = AhoCorasick([marker]) if marker else None
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
        self._closers: list[str] = []
        self._in_key = False  # The current value is a name in an object.
        self._needs_comma = False
        self._prefix_matcher = PrefixMatcher(())
        self._quote = ""
        self._space = ""  # White space after a quote that may have ended a string.
        self._escaped = False
        self._decoder = StringDecoder(PYTHON_ESCAPES)
        self._scanner = MarkerScanner(NO_MARKERS)
        self._word: list[str] = []
        self._raw = ""
        self._chunks: list[str] = []
        self._brace: int | None = None  # Output offset of a `{` that may still begin a set.
        self.is_string = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read on: MORE, END after the value, or INVALID at the character that is not allowed."""
        status = ReadStatus.MORE
        while pos < len(text) and status is ReadStatus.MORE:
            pos, status = self._state(self, text, pos)
        return pos, status

    def take_output(self) -> str:
        """The new output since the last call, as far as it is decided."""
        # JSON writes a set as a list, so what follows `{` waits for the first `:`, `,` or `}`, which tells the two
        # apart.
        if self._brace is not None:
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
        is_unescaped = self._quote not in text and "\\" not in text
        return (
            self._state is PythonicValueReader._parse_string
            and not self._escaped
            and self._decoder.is_plain
            and is_unescaped
        )

    def flush(self) -> None:
        """The value is truncated: release what was held back."""
        self._brace = None
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
        if self._closers and char == self._closers[-1].strip():
            return self._close_bracket(pos)
        if self._needs_comma:
            self._chunks.append(", ")
            self._needs_comma = False
        if char in _STRING_SPECIALS:
            self._begin_string(char)
            self._state = PythonicValueReader._parse_string
            return pos + 1, ReadStatus.MORE
        if self._string_marker and char == self._string_marker[0]:
            self._prefix_matcher, self._state = (
                PrefixMatcher((self._string_marker,)),
                PythonicValueReader._parse_string_marker,
            )
        elif char in _CLOSERS and not self._in_key:
            self._closers.append(_CLOSERS[char])
            self._chunks.append("{" if char == "{" else "[")
            self._in_key = char == "{"
            # Formats with a string marker write objects only: there is nothing to tell apart, and they stream at once.
            if self._in_key and self._brace is None and not self._string_marker:
                self._brace = len(self._chunks) - 1
            return pos + 1, ReadStatus.MORE
        else:
            self._word.clear()
            self._state = PythonicValueReader._parse_word
        return pos, ReadStatus.MORE

    def _begin_string(self, quote: str) -> None:
        self._quote, self._decoder, self._raw = quote, StringDecoder(PYTHON_ESCAPES), ""
        self.is_string = not self._closers
        if not self.is_string:
            self._chunks.append('"')

    def _append_text(self, text: str) -> None:
        self._chunks.append(text if self.is_string else escape_json(text))

    def _parse_string(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if self._escaped:
            self._escaped = False
            self._append_text(self._decoder.decode(text[pos]))
            return pos + 1, ReadStatus.MORE
        special = _STRING_SPECIALS[self._quote].search(text, pos)
        if special is None:
            self._append_text(self._decoder.decode(text[pos:]))
            return len(text), ReadStatus.MORE
        self._escaped = special.group() == "\\"
        self._append_text(self._decoder.decode(text[pos : special.end() if self._escaped else special.start()]))
        if self._escaped:
            return special.end(), ReadStatus.MORE
        self._state = PythonicValueReader._behind_quote
        return special.end(), ReadStatus.MORE

    def _behind_quote(self, text: str, at: int) -> tuple[int, ReadStatus]:
        """A quote after which no value can end is part of the string: the model forgot to escape it."""
        if text[at].isspace():
            self._space += text[at]
            return at + 1, ReadStatus.MORE
        space, self._space = self._space, ""
        if text[at] not in _BEHIND_STRINGS:
            self._append_text(self._decoder.decode(self._quote + space))
            self._state = PythonicValueReader._parse_string
            return at, ReadStatus.MORE
        self._append_text(self._decoder.flush())
        return self._end_string(at)

    def _end_string(self, pos: int) -> tuple[int, ReadStatus]:
        if not self.is_string:
            self._chunks.append('"')
        return self._end_value(pos)

    def _parse_string_marker(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.MATCHED and self._string_marker_patterns is not None:
            self._begin_string("")
            self._scanner, self._state = (
                MarkerScanner(self._string_marker_patterns),
                PythonicValueReader._parse_marked_string,
            )
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
        if self._words_are_text and not self._closers:
            self.is_string = True
        value = raw.strip() if self.is_string else self._convert_word(raw.strip())
        if value is None:
            return end, ReadStatus.INVALID
        self._word.clear()
        self._raw = raw.strip()
        self._chunks.append(value)
        return self._end_value(end)

    def _convert_word(self, word: str) -> str | None:
        """The JSON of an unquoted word; None if it has none."""
        if self._in_key:
            return encode(word) if word else None
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        number = _convert_number(word)
        if number is not None:
            return number
        return encode(word) if self._string_marker and word else None

    def _end_value(self, pos: int) -> tuple[int, ReadStatus]:
        if self._in_key:
            self._state = PythonicValueReader._parse_colon
            return pos, ReadStatus.MORE
        self._state = PythonicValueReader._parse_separator
        return pos, ReadStatus.MORE if self._closers else ReadStatus.END

    def _parse_colon(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos].isspace():
            return pos + 1, ReadStatus.MORE
        # A `{` with values and no colon is a Python set, which becomes a JSON array.
        if text[pos] in ",}" and self._brace is not None and self._chunks[self._brace] == "{":
            return self._to_set(pos)
        if text[pos] != ":":
            return pos, ReadStatus.INVALID
        self._brace = None
        self._chunks.append(": ")
        self._in_key, self._state = False, PythonicValueReader._parse_start
        return pos + 1, ReadStatus.MORE

    def _to_set(self, at: int) -> tuple[int, ReadStatus]:
        """What began as an object is a set, which becomes a list in JSON."""
        assert self._brace is not None
        if self._raw:
            value, self._in_key = self._raw, False
            self._chunks[self._brace + 1 :] = [self._convert_word(value) or encode(value)]
        self._chunks[self._brace], self._brace = "[", None
        self._closers[-1] = "} "
        self._in_key, self._state = False, PythonicValueReader._parse_separator
        return at, ReadStatus.MORE

    def _parse_separator(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """A comma or the end of a list."""
        char = text[pos]
        if char.isspace():
            return pos + 1, ReadStatus.MORE
        if char == self._closers[-1].strip():
            return self._close_bracket(pos)
        self._needs_comma, self._state = True, PythonicValueReader._parse_start
        self._in_key = self._closers[-1] == "}"
        return (pos + 1, ReadStatus.MORE) if char == "," else (pos, ReadStatus.INVALID)

    def _close_bracket(self, pos: int) -> tuple[int, ReadStatus]:
        self._brace = None
        self._chunks.append(_JSON_CLOSERS[self._closers.pop()])
        self._needs_comma = self._in_key = False
        return self._end_value(pos + 1)


def _convert_number(word: str) -> str | None:
    """Convert a number (or true, false, null) to JSON."""
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
