"""Converts the values of Python-like calls to JSON.

They are literals of Python such as True, 'a' and (1, 2), or of JSON such as true.
Nothing is evaluated: any other expression is a string of its text. That holds for
adjacent strings ("a" "b"), prefixes of strings (r"a"), complex and hexadecimal numbers
and operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType

from msgspec import Struct

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


CLOSERS = MappingProxyType({"(": ")", "[": "]", "{": "}"})


_KEY_TERMINATORS = re.compile(r"[:=,\]}]")


# An automaton needs at least one text; this one occurs in no response.
NO_MARKERS = AhoCorasick(["\0"])


QUOTE_PATTERNS = MappingProxyType({quote: AhoCorasick([quote]) for quote in "\"'"})


_NAME_END = re.compile(r"[:=,\"'()\[\]{}<]")
_LAST_NAME = re.compile(r"([\w.\-]+)\s*$")
_NEXT_NAME = re.compile(r"\s([\w.\-]+)\s*[:=]")
_MAX_SKIPPED_CHARS = 256
"""Maximum characters between a comma and the name of the next argument."""
_VALUE_STARTS = frozenset("\"'([{-0123456789")


class _Bracket(Struct):
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
    delimiters: those around calls, which end a value whose brackets are not closed.
    """

    def __init__(self, marker: str, delimiters: tuple[str, ...] = ()) -> None:
        self.marker = marker
        self.marker_patterns = AhoCorasick([marker]) if marker else None
        self.marks = tuple(filter(None, (marker, *delimiters)))
        self.mark_starts = frozenset(mark[0] for mark in self.marks)
        # Without a string marker a word is a number or a constant, so white space and
        # any other token end it too.
        starts = re.escape("".join(sorted(self.mark_starts)))
        self.word_terminators = re.compile(
            rf"[,\]}}){starts}]" if marker else rf"[,\]}})\s:=(\[{{\"'{starts}]"
        )


class PythonicValueReader:
    """Converts one value to JSON, or to its decoded text if it is a string.

    The output is valid JSON, whatever the model writes: what is no literal is a string
    of its text, brackets that are not closed are closed, and what cannot follow a value
    is skipped.

    closers: the brackets that close the call.
    names: the declared arguments. One that follows an unquoted word begins the next
        argument, even without a comma.
    words_are_text: an unquoted word is a string, whatever it looks like.
    """

    def __init__(
        self,
        string_syntax: StringSyntax,
        closers: Sequence[str] = (),
        names: Collection[str] = (),
        *,
        words_are_text: bool = False,
    ) -> None:
        self._words_are_text = words_are_text
        self._closers = closers
        self._names = names
        self._string_syntax = string_syntax
        self._string_marker = string_syntax.marker
        self._string_marker_patterns = string_syntax.marker_patterns
        self._word_terminators = string_syntax.word_terminators
        self._state: Callable[[PythonicValueReader, str, int], tuple[int, ReadStatus]] = (
            PythonicValueReader._parse_start
        )
        self._brackets: list[_Bracket] = []
        self._n_open = dict.fromkeys(CLOSERS.values(), 0)
        self._in_key = False  # The current value is a key of an object.
        self._needs_comma = False
        self._prefix_matcher = PrefixMatcher(())
        self._quote = ""
        self._held = ""  # Text that belongs to the value unless the value has ended.
        self._comma = ""
        self._after_comma = ""
        self._escaped = False
        self._is_empty_string = False
        self._quote_count = 0  # Quotes that may end a triple-quoted string.
        self._decoder = StringDecoder(PYTHON_ESCAPES)
        self._scanner = MarkerScanner(NO_MARKERS)
        self._word: list[str] = []
        self._depth = 0  # Open brackets in an expression.
        self._raw = ""
        self._chunks: list[str] = []
        self.is_string = False
        self.unread = ""
        """Text after the value that was read with it."""
        self.skipped: list[str] = []
        """Text that belongs to no value."""

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Continue reading at `pos`, and return the new position and the status: MORE,
        or END after the value.
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
            and not self._is_empty_string
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

    def close(self) -> None:
        """End the value, although it is incomplete."""
        if self._state is PythonicValueReader._parse_string_marker:
            self._begin_word()
            self._word.append(self._held)
        if self._state is PythonicValueReader._parse_marked_string:
            self._append_text(self._scanner.flush())
        if self._state in (
            PythonicValueReader._parse_word,
            PythonicValueReader._parse_expression,
        ) or (self._word and self._is_deciding):
            self._end_word(0)
        elif self._is_deciding or self._state in (
            PythonicValueReader._parse_string,
            PythonicValueReader._parse_after_quote,
            PythonicValueReader._parse_end_quotes,
            PythonicValueReader._parse_marked_string,
        ):
            self._append_text(self._decoder.flush())
            self._end_string(0)
        elif self._state is PythonicValueReader._parse_start and not self._brackets:
            self._append_null()
        self._close_brackets()

    @property
    def _is_deciding(self) -> bool:
        """Whether text after the value may still belong to it."""
        return self._state in (
            PythonicValueReader._parse_after_comma,
            PythonicValueReader._parse_after_closer,
            PythonicValueReader._parse_mark,
        )

    def _close_brackets(self) -> None:
        # Every state has closed the innermost bracket after two closers.
        for _ in range(2 * len(self._brackets)):
            if self._brackets:
                self._state(self, self._brackets[-1].closer, 0)

    def _parse_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        char = text[pos]
        if char.isspace() or char in ":=":
            return pos + 1, ReadStatus.MORE
        awaits_value = not self._brackets or (
            self._brackets[-1].json_closer == "}" and not self._in_key
        )
        if char in ",)]}":
            if awaits_value:
                self._append_null()
                return self._end_value(pos)
            return (pos + 1, ReadStatus.MORE) if char == "," else self._handle_closer(char, pos)
        if self._needs_comma:
            self._chunks.append(", ")
            self._needs_comma = False
        if char in _STRING_SPECIALS:
            self._begin_string(char)
            self._state = PythonicValueReader._parse_string
            return pos + 1, ReadStatus.MORE
        if self._string_marker and char == self._string_marker[0]:
            self._held = ""
            self._prefix_matcher = PrefixMatcher((self._string_marker,))
            self._state = PythonicValueReader._parse_string_marker
        elif char in CLOSERS and not self._in_key:
            self._chunks.append(_OPENERS[char])
            self._in_key = char == "{"
            # Formats with a string marker have no sets, so an object streams at once.
            is_undecided = char == "(" or (self._in_key and not self._string_marker)
            undecided = len(self._chunks) - 1 if is_undecided else None
            self._n_open[CLOSERS[char]] += 1
            self._brackets.append(_Bracket(CLOSERS[char], "}" if self._in_key else "]", undecided))
            return pos + 1, ReadStatus.MORE
        else:
            self._begin_word()
        return pos, ReadStatus.MORE

    def _append_null(self) -> None:
        self._chunks.append("null")

    def _begin_word(self) -> None:
        self._word.clear()
        self.is_string = self._words_are_text and not self._brackets
        self._state = PythonicValueReader._parse_word

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
        if len(self._quote) == 3:
            self._quote_count = 1
            self._state = PythonicValueReader._parse_end_quotes
        else:
            self._held = self._quote
            self._state = PythonicValueReader._parse_after_quote
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
        char = text[pos]
        is_triple = char == self._quote and self._is_empty_string and len(self._held) == 1
        if is_triple:
            self._quote *= 3
            self._state = PythonicValueReader._parse_string
        elif char in self._string_syntax.mark_starts:
            self._expect_mark()
        elif char == "," and self._is_argument_value:
            self._expect_name(",")
            return pos + 1, ReadStatus.MORE
        elif self._held[-1].isspace() and self._names and (char.isalpha() or char == "_"):
            self._expect_name("")
        elif char.isspace() or (char in self._closers and not self._brackets):
            self._held += char
            if not char.isspace():
                self._state = PythonicValueReader._parse_after_closer
            return pos + 1, ReadStatus.MORE
        elif char == "," or self._is_open(char) or (self._in_key and char in ":="):
            self._append_text(self._decoder.flush())
            return self._end_string(pos)
        else:
            self._resume_string()
        return pos + is_triple, ReadStatus.MORE

    def _expect_name(self, comma: str) -> None:
        """Expect the name of the next argument, after a comma or where one is missing."""
        self._comma = comma
        self._after_comma = ""
        self._state = PythonicValueReader._parse_after_comma

    def _parse_after_closer(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Decide whether a bracket after a quote closes the call, or both are text: the
        end of the list or of the calls, or another call, must follow.
        """
        char = text[pos]
        if char.isspace():
            self._held += char
            return pos + 1, ReadStatus.MORE
        after = self._held.partition(self._quote or '"')[2]
        closer = after.strip()
        is_end = (
            char in ",;]"
            or char in self._string_syntax.mark_starts
            or "\n" in after.partition(closer)[2]
            or (len(self._closers) > 1 and char in self._closers)
        )
        if not is_end:
            self._resume_string()
            return pos, ReadStatus.MORE
        self.unread = closer
        self._append_text(self._decoder.flush())
        return self._end_string(pos)

    @property
    def _is_argument_value(self) -> bool:
        """Whether a name must follow the comma after this value."""
        return not self._brackets or (self._brackets[-1].json_closer == "}" and not self._in_key)

    def _is_open(self, closer: str) -> bool:
        """Whether this bracket closes one that is open, or the call."""
        return self._n_open.get(closer, 0) > 0 or closer in self._closers

    def _resume_string(self) -> None:
        """Continue the string with the text that was held back."""
        if self._quote:
            self._append_text(self._decoder.decode(self._held))
            self._state = PythonicValueReader._parse_string
        else:
            self._append_text(self._held)
            self._expect_string_marker()

    def _parse_after_comma(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Decide whether a comma ended the value: the name of the next argument, or
        nothing, must follow. Words before a declared name are skipped.
        """
        found = _NAME_END.search(text, pos)
        end = len(text) if found is None else found.start()
        self._after_comma += text[pos:end]
        after = self._after_comma
        is_long = len(after) > _MAX_SKIPPED_CHARS
        if found is None and not is_long:
            return end, ReadStatus.MORE
        char = text[end : end + 1]
        if char == "," and self._comma and after.strip() and not self._word and not is_long:
            self._after_comma += ","
            return end + 1, ReadStatus.MORE
        last = _LAST_NAME.search(after)
        name = "" if last is None else last[1]
        if is_long:
            is_next = False
        elif char in ":=":
            is_declared = name in self._names and not self._brackets
            is_next = is_declared or bool(name and self._comma and after.strip() == name)
        else:
            is_next = not after.strip() and (
                char in ",\"'" or char in self._string_syntax.mark_starts or self._is_open(char)
            )
        if is_next:
            self.unread = self._comma + name
            self.skipped.append(f" {after.rstrip().removesuffix(name)} ")
            return self._end_text(end)
        self._held += self._comma + after
        self._resume()
        return end, ReadStatus.MORE

    def _end_text(self, pos: int) -> tuple[int, ReadStatus]:
        """End the string or the word that may have ended."""
        if self._word:
            return self._end_word(pos)
        self._append_text(self._decoder.flush())
        return self._end_string(pos)

    def _resume(self) -> None:
        """Continue the string or the word with the text that was held back."""
        if self._word:
            self._word.append(self._held)
            self._held = ""
            self._state = PythonicValueReader._parse_word
        else:
            self._resume_string()

    def _expect_mark(self) -> None:
        self._prefix_matcher = PrefixMatcher(self._string_syntax.marks)
        self._state = PythonicValueReader._parse_mark

    def _parse_mark(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a marker after a value. The end of the call ends the value; a string
        marker is text.
        """
        start = pos
        pos, result = self._prefix_matcher.read(text, pos)
        self._held += text[start:pos]
        if result is PrefixResult.INCOMPLETE:
            return pos, ReadStatus.MORE
        marker = self._prefix_matcher.marker if result is PrefixResult.MATCHED else ""
        if marker and marker != self._string_marker:
            if not self._brackets:
                self.unread = marker
                return self._end_text(pos)
            self._end_text(pos)
            self._close_brackets()
            self.unread = marker
            return pos, ReadStatus.END
        if marker and not self._word and not self._quote:
            self._append_text(self._held.removesuffix(marker))
            self._held = '"'
            self._state = PythonicValueReader._parse_after_quote
        else:
            self._resume()
        return pos, ReadStatus.MORE

    def _end_string(self, pos: int) -> tuple[int, ReadStatus]:
        if not self.is_string:
            self._chunks.append('"')
        return self._end_value(pos)

    def _parse_string_marker(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        start = pos
        pos, result = self._prefix_matcher.read(text, pos)
        self._held += text[start:pos]
        if result is PrefixResult.MATCHED:
            self._begin_string("")
            self._expect_string_marker()
        elif result is PrefixResult.NO_MATCH:
            self._begin_word()
            self._word.append(self._held)
        return pos, ReadStatus.MORE

    def _expect_string_marker(self) -> None:
        assert self._string_marker_patterns is not None
        self._scanner = MarkerScanner(self._string_marker_patterns)
        self._state = PythonicValueReader._parse_marked_string

    def _parse_marked_string(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, chunk = self._scanner.read(text, pos)
        self._append_text(chunk)
        if self._scanner.marker:
            # Where the string cannot end, models write the marker for a quote.
            self._held = '"'
            self._state = PythonicValueReader._parse_after_quote
        return pos, ReadStatus.MORE

    def _parse_word(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a number, a constant, or an unquoted string."""
        terminators = _KEY_TERMINATORS if self._in_key else self._word_terminators
        terminator = terminators.search(text, pos)
        end = len(text) if terminator is None else terminator.start()
        self._word.append(text[pos:end])
        if terminator is None:
            return end, ReadStatus.MORE
        char = text[end]
        self._held = ""
        is_end = self._in_key or char == "," or self._is_open(char)
        if char in self._string_syntax.mark_starts:
            self._expect_mark()
        elif self._string_marker and char == "," and self._is_argument_value:
            self._expect_name(",")
            end += 1
        elif is_end or (
            not self._string_marker and _convert_literal("".join(self._word)) is not None
        ):
            return self._end_word(end)
        elif self._string_marker:
            self._word.append(char)
            end += 1
        else:
            self._depth = 0
            self._state = PythonicValueReader._parse_expression
        return end, ReadStatus.MORE

    def _parse_expression(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read what is no literal up to the comma or bracket after it."""
        char = text[pos]
        if self._depth == 0 and (char == "," or self._is_open(char)):
            return self._end_word(pos)
        self._depth += (char in "([{") - (char in ")]}" and self._depth > 0)
        self._word.append(char)
        return pos + 1, ReadStatus.MORE

    def _end_word(self, pos: int) -> tuple[int, ReadStatus]:
        raw = "".join(self._word).strip()
        self._word.clear()
        if not self._in_key:
            raw = self._split_next_argument(raw)
        if self._string_marker:
            raw = raw.removeprefix(self._string_marker).removesuffix(self._string_marker).strip()
        self._raw = raw
        if self.is_string:
            self._chunks.append(raw)
        elif self._in_key:
            self._chunks.append(encode(raw))
        else:
            self._chunks.append(_convert_literal(raw) or encode(raw))
        return self._end_value(pos)

    def _split_next_argument(self, raw: str) -> str:
        """Cut off the next argument where the comma before it is missing."""
        if not self._brackets:
            for found in _NEXT_NAME.finditer(raw):
                if found[1] in self._names:
                    self.unread = raw[found.start(1) :] + self.unread
                    return raw[: found.start()]
        return raw

    def _end_value(self, pos: int) -> tuple[int, ReadStatus]:
        self._held = ""
        if self._in_key:
            self._state = PythonicValueReader._parse_colon
        else:
            self._state = PythonicValueReader._parse_separator
            if not self._brackets:
                return pos, ReadStatus.END
        unread = self.unread
        self.unread = ""
        status = ReadStatus.MORE
        at = 0
        while at < len(unread) and status is ReadStatus.MORE:
            at, status = self._state(self, unread, at)
        self.unread = unread[at:] if status is ReadStatus.END else ""
        return pos, status

    def _parse_colon(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        bracket = self._brackets[-1]
        # A `{` with values and no colon is a Python set, which becomes a JSON array.
        if text[pos] in ",}" and bracket.undecided is not None:
            self._in_key = False
            if self._raw:
                self._chunks[bracket.undecided + 1 :] = [
                    _convert_literal(self._raw) or encode(self._raw)
                ]
            self._chunks[bracket.undecided] = "["
            bracket.json_closer = "]"
            bracket.undecided = None
            self._state = PythonicValueReader._parse_separator
            return pos, ReadStatus.MORE
        if text[pos] in ",}":
            self._chunks.append(": null")
            self._in_key = False
            self._state = PythonicValueReader._parse_separator
            return pos, ReadStatus.MORE
        if text[pos] not in ":=":
            self.skipped.append(text[pos])
            return pos + 1, ReadStatus.MORE
        bracket.undecided = None
        self._chunks.append(": ")
        self._in_key = False
        self._state = PythonicValueReader._parse_start
        return pos + 1, ReadStatus.MORE

    def _parse_separator(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read a comma or a closing bracket."""
        char = text[pos]
        bracket = self._brackets[-1]
        if char in ")]}":
            return self._handle_closer(char, pos)
        is_next = char in _VALUE_STARTS or char in self._string_syntax.mark_starts
        if char != "," and not is_next:
            self.skipped.append(char)
            return pos + 1, ReadStatus.MORE
        bracket.undecided = None
        self._needs_comma = True
        self._state = PythonicValueReader._parse_start
        self._in_key = bracket.json_closer == "}"
        return pos + (char == ","), ReadStatus.MORE

    def _handle_closer(self, char: str, pos: int) -> tuple[int, ReadStatus]:
        """Close the innermost bracket that this one closes, with those in it."""
        while self._brackets and self._is_open(char):
            bracket = self._brackets[-1]
            if (
                bracket.undecided is not None
                and bracket.closer == ")"
                and not self._is_empty(bracket)
            ):
                # Parentheses around one value are no tuple.
                self._chunks[bracket.undecided] = bracket.json_closer = ""
            self._n_open[bracket.closer] -= 1
            self._chunks.append(self._brackets.pop().json_closer)
            self._needs_comma = self._in_key = False
            if bracket.closer == char:
                return self._end_value(pos + 1)
        if not self._brackets:
            return self._end_value(pos)
        return pos + 1, ReadStatus.MORE

    def _is_empty(self, bracket: _Bracket) -> bool:
        return bracket.undecided == len(self._chunks) - 1


def convert_literal(text: str) -> str | None:
    """Convert a list, tuple, set or dict of Python to JSON; return None for any other
    text.
    """
    reader = PythonicValueReader(StringSyntax(""))
    pos, status = reader.read(text, 0)
    is_whole = status is ReadStatus.END and not text[pos:].strip()
    if not is_whole or reader.is_string or "".join(reader.skipped).strip():
        return None
    return reader.take_output()


def _convert_literal(word: str) -> str | None:
    """Convert a constant or number to JSON; return None for any other word."""
    return _CONSTANTS.get(word) or _convert_json_scalar(word)


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
