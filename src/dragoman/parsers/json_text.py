"""Reading JSON as it arrives: where an object's keys and values begin and end, and what its strings mean.

Lenient on purpose: what a value holds is the model's business and is passed on as it was written. Only strings and
brackets are followed, to know where it ends. Knows no events; every character is read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

import msgspec
from msgspec import Struct

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_STRING_SPECIALS = re.compile(r'["\\]')
_BRACKETS_OR_QUOTE = re.compile(r'["{}\[\]<]')
"""`<` stands nowhere in JSON but in strings: a mark begins there."""
_SCALAR_TERMINATORS = re.compile(r"[,\]} \t\r\n]")
_CLOSERS = MappingProxyType({"{": "}", "[": "]"})
_INVALID_VALUE_STARTS = frozenset(",:]}")


def skip_whitespace(text: str, pos: int) -> int:
    """Where the white space from `at` on ends."""
    whitespace = _WHITESPACE.match(text, pos)
    return pos if whitespace is None else whitespace.end()


class ReadStatus(Enum):
    """What a reader has come to."""

    MORE = "more"
    """The text is used up; what comes next is still open."""
    KEY = "key"
    """A key ended here."""
    VALUE = "value"
    """A value begins here."""
    END = "end"
    """The value ended here."""
    CLOSE = "close"
    """The object ended here."""
    INVALID = "bad"
    """This character cannot stand here."""


class ValueReader:
    """Finds the end of one value, whatever it is; MORE, END or BAD."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._in_scalar = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read on from `at`: the position behind the value, of the wrong character, or the end of the text."""
        while pos < len(text):
            if self._escaped:
                self._escaped = False
                pos += 1
            elif self._in_string:
                pos = self._skip_string(text, pos)
                if not (self._in_string or self._closers):
                    return pos, ReadStatus.END
            elif self._in_scalar:
                end = _SCALAR_TERMINATORS.search(text, pos)
                return (len(text), ReadStatus.MORE) if end is None else (end.start(), ReadStatus.END)
            elif self._closers:
                pos, status = self._skip_brackets(text, pos)
                if status is not ReadStatus.MORE:
                    return pos, status
            else:
                pos = self._begin_value(text[pos], pos)
        return pos, ReadStatus.MORE

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only goes on with a string."""
        return self._in_string and not self._escaped and '"' not in text and "\\" not in text

    def _begin_value(self, char: str, pos: int) -> int:
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        else:
            self._in_scalar = True
        return pos + 1

    def _skip_string(self, text: str, pos: int) -> int:
        special = _STRING_SPECIALS.search(text, pos)
        if special is None:
            return len(text)
        if special.group() == '"':
            self._in_string = False
        else:
            self._escaped = True
        return special.end()

    def _skip_brackets(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        special = _BRACKETS_OR_QUOTE.search(text, pos)
        if special is None:
            return len(text), ReadStatus.MORE
        char = special.group()
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif char == "<" or char != self._closers.pop():
            return special.start(), ReadStatus.INVALID
        elif not self._closers:
            return special.end(), ReadStatus.END
        return special.end(), ReadStatus.MORE


class ObjectReader:
    """Reads one object and tells of its keys and values as they come."""

    def __init__(self) -> None:
        self.key = ""
        """The key that was read last."""
        self.in_value = False
        """Between VALUE and END: all that is read belongs to the value."""
        self._state: Callable[[ObjectReader, str, int], tuple[int, ReadStatus]] = ObjectReader._parse_open
        self._value = ValueReader()
        self._raw: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read on from `at` until something is seen: its position, and what it is."""
        while True:
            if not self.in_value and self._state is not ObjectReader._parse_key:
                pos = skip_whitespace(text, pos)
            if pos >= len(text):
                return pos, ReadStatus.MORE
            state_before = self._state
            pos, status = state_before(self, text, pos)
            if status is not ReadStatus.MORE or pos >= len(text):
                return pos, status

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only goes on with a string in a value."""
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


def decode_string(raw: str) -> str | None:
    """The string that this JSON text is; None if it is none."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


_ESCAPES = MappingProxyType(
    {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"},
)
_HEX = re.compile(r"[0-9a-fA-F]*")


class EscapeRules(Struct, frozen=True):
    """plain: what a character behind a backslash means. hex: how many hexadecimal digits follow which one.
    passed_over: the characters that are no part of the string.
    """

    single_chars: Mapping[str, str]
    hex_digits: Mapping[str, int]
    ignored_chars: str = ""


JSON_ESCAPES = EscapeRules(_ESCAPES, MappingProxyType({"u": 4}), '"')
PYTHON_ESCAPES = EscapeRules(
    MappingProxyType({**_ESCAPES, "'": "'", "a": "\a", "v": "\v", "0": "\0", "\n": ""}),
    MappingProxyType({"u": 4, "x": 2, "U": 8}),
)


class StringDecoder:
    """What a string means, as its text arrives. The quotes of JSON are its borders and mean nothing.

    An escape that is none is passed on as it stands, half a surrogate pair becomes U+FFFD.
    """

    def __init__(self, escapes: EscapeRules = JSON_ESCAPES) -> None:
        self._escapes = escapes
        self._plain_text = re.compile("[^\\\\" + escapes.ignored_chars + "]+")
        self._pending = ""
        self._high_surrogate = 0

    def decode(self, raw: str) -> str:
        """The meaning of the next piece of JSON text, as far as it is decided."""
        text, pos, parts = self._pending + raw, 0, list[str]()
        while pos < len(text):
            plain = self._plain_text.match(text, pos)
            if plain is not None:
                parts.append(self._flush_surrogate() + plain.group())
                pos = plain.end()
            elif text[pos] != "\\":
                pos += 1
            else:
                size = self._decode_escape(text, pos, parts)
                if not size:
                    break
                pos += size
        self._pending = text[pos:]
        return "".join(parts)

    def flush(self) -> str:
        """The string has ended, or the text of it has: what was still undecided."""
        pending, self._pending = self._pending, ""
        return self._flush_surrogate() + pending

    @property
    def is_plain(self) -> bool:
        """Plain text that follows means itself."""
        return not self._pending and not self._high_surrogate

    def _decode_escape(self, text: str, pos: int, parts: list[str]) -> int:
        """Decode one escape into `out`; its length, 0 if it is not whole yet."""
        kind = text[pos + 1 : pos + 2]
        if not kind:
            return 0
        size = self._escapes.hex_digits.get(kind, 0)
        digits = _HEX.match(text, pos + 2, pos + 2 + size)
        if size and digits is not None:
            if digits.end() == pos + 2 + size:
                parts.append(self._decode_code_unit(int(digits.group(), 16)))
                return 2 + size
            if digits.end() == len(text):
                return 0
        parts.append(self._flush_surrogate() + self._escapes.single_chars.get(kind, "\\" + kind))
        return 2

    def _decode_code_unit(self, code: int) -> str:
        """One UTF-16 code unit; the first half of a pair waits for the second."""
        high_surrogate, self._high_surrogate = self._high_surrogate, 0
        if high_surrogate and 0xDC00 <= code < 0xE000:
            return chr(0x10000 + ((high_surrogate - 0xD800) << 10) + (code - 0xDC00))
        replacement = "\ufffd" if high_surrogate else ""
        if 0xD800 <= code < 0xDC00:
            self._high_surrogate = code
            return replacement
        return replacement + ("\ufffd" if 0xDC00 <= code < 0xE000 or code > 0x10FFFF else chr(code))

    def _flush_surrogate(self) -> str:
        high_surrogate, self._high_surrogate = self._high_surrogate, 0
        return "\ufffd" if high_surrogate else ""
