"""Converts the values of Python-like calls to JSON.

They are literals of Python such as True, 'a' and (1, 2), or of JSON such as true.
Nothing is evaluated. Not supported: adjacent strings ("a" "b"), prefixes of strings
(r"a"), complex and hexadecimal numbers, operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from .aho_corasick import AhoCorasick, MarkerScanner
from .argument_writer import escape_json
from .json_codec import decode, encode
from .json_scanner import ReadStatus
from .json_strings import PYTHON_ESCAPES, StringDecoder
from .prefix_matcher import PrefixMatcher, PrefixResult

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
