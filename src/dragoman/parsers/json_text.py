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

_BLANKS = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'["\\]')
_IN_BRACKETS = re.compile(r'["{}\[\]<]')
"""`<` stands nowhere in JSON but in strings: a mark begins there."""
_SCALAR_ENDS = re.compile(r"[,\]} \t\r\n]")
_CLOSERS = MappingProxyType({"{": "}", "[": "]"})
_NO_VALUE = frozenset(",:]}")


def blanks(text: str, at: int) -> int:
    """Where the white space from `at` on ends."""
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()


class Seen(Enum):
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
    BAD = "bad"
    """This character cannot stand here."""


class ValueReader:
    """Finds the end of one value, whatever it is; MORE, END or BAD."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._in_scalar = False

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        """Read on from `at`: the position behind the value, of the wrong character, or the end of the text."""
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._in_string:
                at = self._string(text, at)
                if not (self._in_string or self._closers):
                    return at, Seen.END
            elif self._in_scalar:
                end = _SCALAR_ENDS.search(text, at)
                return (len(text), Seen.MORE) if end is None else (end.start(), Seen.END)
            elif self._closers:
                at, seen = self._brackets(text, at)
                if seen is not Seen.MORE:
                    return at, seen
            else:
                at = self._begin(text[at], at)
        return at, Seen.MORE

    def passes(self, text: str) -> bool:
        """Whether this text only goes on with a string."""
        return self._in_string and not self._escaped and '"' not in text and "\\" not in text

    def _begin(self, char: str, at: int) -> int:
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        else:
            self._in_scalar = True
        return at + 1

    def _string(self, text: str, at: int) -> int:
        mark = _IN_STRING.search(text, at)
        if mark is None:
            return len(text)
        if mark.group() == '"':
            self._in_string = False
        else:
            self._escaped = True
        return mark.end()

    def _brackets(self, text: str, at: int) -> tuple[int, Seen]:
        mark = _IN_BRACKETS.search(text, at)
        if mark is None:
            return len(text), Seen.MORE
        char = mark.group()
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        elif char == "<" or char != self._closers.pop():
            return mark.start(), Seen.BAD
        elif not self._closers:
            return mark.end(), Seen.END
        return mark.end(), Seen.MORE


class ObjectReader:
    """Reads one object and tells of its keys and values as they come."""

    def __init__(self) -> None:
        self.key = ""
        """The key that was read last."""
        self.in_value = False
        """Between VALUE and END: all that is read belongs to the value."""
        self._expects: Callable[[ObjectReader, str, int], tuple[int, Seen]] = ObjectReader._open
        self._value = ValueReader()
        self._raw: list[str] = []

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        """Read on from `at` until something is seen: its position, and what it is."""
        while True:
            if not self.in_value and self._expects is not ObjectReader._in_key:
                at = blanks(text, at)
            if at >= len(text):
                return at, Seen.MORE
            before = self._expects
            at, seen = before(self, text, at)
            if seen is not Seen.MORE or at >= len(text):
                return at, seen

    def passes(self, text: str) -> bool:
        """Whether this text only goes on with a string in a value."""
        return self.in_value and self._value.passes(text)

    def _open(self, text: str, at: int) -> tuple[int, Seen]:
        self._expects = ObjectReader._first_key
        return (at + 1, Seen.MORE) if text[at] == "{" else (at, Seen.BAD)

    def _first_key(self, text: str, at: int) -> tuple[int, Seen]:
        return (at + 1, Seen.CLOSE) if text[at] == "}" else self._a_key(text, at)

    def _a_key(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at] != '"':
            return at, Seen.BAD
        self._value = ValueReader()
        self._raw = []
        self._expects = ObjectReader._in_key
        return at, Seen.MORE

    def _in_key(self, text: str, at: int) -> tuple[int, Seen]:
        end, seen = self._value.read(text, at)
        self._raw.append(text[at:end])
        if seen is not Seen.END:
            return end, seen
        key = string("".join(self._raw))
        if key is None:
            return end, Seen.BAD
        self.key = key
        self._expects = ObjectReader._colon
        return end, Seen.KEY

    def _colon(self, text: str, at: int) -> tuple[int, Seen]:
        self._expects = ObjectReader._a_value
        return (at + 1, Seen.MORE) if text[at] == ":" else (at, Seen.BAD)

    def _a_value(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at] in _NO_VALUE:
            return at, Seen.BAD
        self._value = ValueReader()
        self._expects = ObjectReader._in_the_value
        self.in_value = True
        return at, Seen.VALUE

    def _in_the_value(self, text: str, at: int) -> tuple[int, Seen]:
        at, seen = self._value.read(text, at)
        if seen is Seen.END:
            self.in_value = False
            self._expects = ObjectReader._comma
        return at, seen

    def _comma(self, text: str, at: int) -> tuple[int, Seen]:
        self._expects = ObjectReader._a_key
        if text[at] == "}":
            return at + 1, Seen.CLOSE
        return (at + 1, Seen.MORE) if text[at] == "," else (at, Seen.BAD)


def string(raw: str) -> str | None:
    """The string that this JSON text is; None if it is none."""
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


_ESCAPES = MappingProxyType(
    {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"},
)
_HEX = re.compile(r"[0-9a-fA-F]*")


class Escapes(Struct, frozen=True):
    """plain: what a character behind a backslash means. hex: how many hexadecimal digits follow which one.
    passed_over: the characters that are no part of the string.
    """

    plain: Mapping[str, str]
    hex: Mapping[str, int]
    passed_over: str = ""


JSON = Escapes(_ESCAPES, MappingProxyType({"u": 4}), '"')
PYTHON = Escapes(
    MappingProxyType({**_ESCAPES, "'": "'", "a": "\a", "v": "\v", "0": "\0", "\n": ""}),
    MappingProxyType({"u": 4, "x": 2, "U": 8}),
)


class StringReader:
    """What a string means, as its text arrives. The quotes of JSON are its borders and mean nothing.

    An escape that is none is passed on as it stands, half a surrogate pair becomes U+FFFD.
    """

    def __init__(self, escapes: Escapes = JSON) -> None:
        self._escapes = escapes
        self._plain = re.compile("[^\\\\" + escapes.passed_over + "]+")
        self._rest = ""
        self._high = 0

    def read(self, raw: str) -> str:
        """The meaning of the next piece of JSON text, as far as it is decided."""
        text, at, out = self._rest + raw, 0, list[str]()
        while at < len(text):
            plain = self._plain.match(text, at)
            if plain is not None:
                out.append(self._lone() + plain.group())
                at = plain.end()
            elif text[at] != "\\":
                at += 1
            else:
                size = self._escape(text, at, out)
                if not size:
                    break
                at += size
        self._rest = text[at:]
        return "".join(out)

    def end(self) -> str:
        """The string has ended, or the text of it has: what was still undecided."""
        rest, self._rest = self._rest, ""
        return self._lone() + rest

    @property
    def settled(self) -> bool:
        """Plain text that follows means itself."""
        return not self._rest and not self._high

    def _escape(self, text: str, at: int, out: list[str]) -> int:
        """Decode one escape into `out`; its length, 0 if it is not whole yet."""
        kind = text[at + 1 : at + 2]
        if not kind:
            return 0
        size = self._escapes.hex.get(kind, 0)
        digits = _HEX.match(text, at + 2, at + 2 + size)
        if size and digits is not None:
            if digits.end() == at + 2 + size:
                out.append(self._unit(int(digits.group(), 16)))
                return 2 + size
            if digits.end() == len(text):
                return 0
        out.append(self._lone() + self._escapes.plain.get(kind, "\\" + kind))
        return 2

    def _unit(self, code: int) -> str:
        """One UTF-16 code unit; the first half of a pair waits for the second."""
        high, self._high = self._high, 0
        if high and 0xDC00 <= code < 0xE000:
            return chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00))
        lone = "\ufffd" if high else ""
        if 0xD800 <= code < 0xDC00:
            self._high = code
            return lone
        return lone + ("\ufffd" if 0xDC00 <= code < 0xE000 or code > 0x10FFFF else chr(code))

    def _lone(self) -> str:
        high, self._high = self._high, 0
        return "\ufffd" if high else ""
