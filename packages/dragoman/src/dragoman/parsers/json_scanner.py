"""Finds the parts of JSON in a stream: keys, values, ends.

The scanners are lenient on purpose: values pass unchanged, whatever they contain. Only
strings and brackets are tracked, to find the end. Every character is read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from types import MappingProxyType

from .json_strings import decode_string

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_STRING_SPECIALS = re.compile(r'["\\]')
_BRACKETS_OR_QUOTE = re.compile(r'["{}\[\]<`]')
"""`<` and a backtick occur in JSON only inside strings; elsewhere they begin a marker
or end a code block.
"""
_SCALAR_TERMINATORS = re.compile(r"[,\]} \t\r\n]")
_CLOSERS = MappingProxyType({"{": "}", "[": "]"})
_INVALID_VALUE_STARTS = frozenset(",:]}")


def skip_whitespace(text: str, pos: int) -> int:
    """Return the position after the white space at `pos`."""
    whitespace = _WHITESPACE.match(text, pos)
    return pos if whitespace is None else whitespace.end()


class ReadStatus(Enum):
    """The state of an incremental reader after a read."""

    MORE = "more"
    """All text has been read, and the value is incomplete."""
    KEY = "key"
    """A key ended."""
    VALUE = "value"
    """A value begins."""
    END = "end"
    """The value ended."""
    CLOSE = "close"
    """The object ended."""
    INVALID = "bad"
    """This character is not allowed here."""


class ValueReader:
    """Finds the end of one value of any type. Its statuses are MORE, END and INVALID."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._in_scalar = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read from `pos`. Return the position after the value, of the invalid
        character, or the end of the text.
        """
        while pos < len(text):
            if self._escaped:
                self._escaped = False
                pos += 1
            elif self._in_string:
                special = _STRING_SPECIALS.search(text, pos)
                if special is None:
                    return len(text), ReadStatus.MORE
                self._in_string = self._escaped = special.group() == "\\"
                pos = special.end()
                if not (self._in_string or self._closers):
                    return pos, ReadStatus.END
            elif self._in_scalar:
                # A number ends only with the character after it: 12 may continue as 123
                # in the next chunk.
                end = _SCALAR_TERMINATORS.search(text, pos)
                return (
                    (len(text), ReadStatus.MORE) if end is None else (end.start(), ReadStatus.END)
                )
            elif self._closers:
                pos, status = self._skip_brackets(text, pos)
                if status is not ReadStatus.MORE:
                    return pos, status
            else:
                char = text[pos]
                if char == '"':
                    self._in_string = True
                elif char in _CLOSERS:
                    self._closers.append(_CLOSERS[char])
                else:
                    self._in_scalar = True
                pos += 1
        return pos, ReadStatus.MORE

    @property
    def is_in_string(self) -> bool:
        return self._in_string

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string."""
        return self._in_string and not self._escaped and '"' not in text and "\\" not in text

    def _skip_brackets(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        special = _BRACKETS_OR_QUOTE.search(text, pos)
        if special is None:
            return len(text), ReadStatus.MORE
        char = special.group()
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        # A wrong closing bracket is invalid; a search for the right one could consume
        # the rest of the response.
        elif char in "<`" or char != self._closers.pop():
            return special.start(), ReadStatus.INVALID
        elif not self._closers:
            return special.end(), ReadStatus.END
        return special.end(), ReadStatus.MORE


class ObjectReader:
    """Reads one object and reports its keys and values incrementally."""

    def __init__(self) -> None:
        self.key = ""
        """The last key."""
        self.in_value = False
        """Whether the reader is between VALUE and END, where all text belongs to the
        value.
        """
        self._state: Callable[[ObjectReader, str, int], tuple[int, ReadStatus]] = (
            ObjectReader._parse_open
        )
        self._value = ValueReader()
        self._raw: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read from `pos` until a key, a value or the object begins or ends. Return the
        position and the status.
        """
        while True:
            # Inside a key or a value white space may be part of a string.
            if not self.in_value and self._state is not ObjectReader._parse_key:
                pos = skip_whitespace(text, pos)
            if pos >= len(text):
                return pos, ReadStatus.MORE
            pos, status = self._state(self, text, pos)
            if status is not ReadStatus.MORE or pos >= len(text):
                return pos, status

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string in a value."""
        return self.in_value and self._value.is_plain_continuation(text)

    def _parse_open(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        self._state = ObjectReader._parse_first_key
        return (pos + 1, ReadStatus.MORE) if text[pos] == "{" else (pos, ReadStatus.INVALID)

    def _parse_first_key(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        return (pos + 1, ReadStatus.CLOSE) if text[pos] == "}" else self._parse_key_start(text, pos)

    def _parse_key_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos] != '"':
            return pos, ReadStatus.INVALID
        self._value = ValueReader()
        self._raw = []
        self._state = ObjectReader._parse_key
        return pos, ReadStatus.MORE

    def _parse_key(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        end, status = self._value.read(text, pos)
        self._raw.append(text[pos:end])
        if status is not ReadStatus.END:
            return end, status
        key = decode_string("".join(self._raw))
        if key is None:
            return end, ReadStatus.INVALID
        self.key = key
        self._state = ObjectReader._parse_colon
        return end, ReadStatus.KEY

    def _parse_colon(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        self._state = ObjectReader._parse_value_start
        return (pos + 1, ReadStatus.MORE) if text[pos] == ":" else (pos, ReadStatus.INVALID)

    def _parse_value_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos] in _INVALID_VALUE_STARTS:
            return pos, ReadStatus.INVALID
        self._value = ValueReader()
        self._state = ObjectReader._parse_value
        self.in_value = True
        return pos, ReadStatus.VALUE

    def _parse_value(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, status = self._value.read(text, pos)
        if status is ReadStatus.END:
            self.in_value = False
            self._state = ObjectReader._parse_comma
        return pos, status

    def _parse_comma(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        self._state = ObjectReader._parse_key_start
        if text[pos] == "}":
            return pos + 1, ReadStatus.CLOSE
        return (pos + 1, ReadStatus.MORE) if text[pos] == "," else (pos, ReadStatus.INVALID)
