"""Decodes the strings of JSON or Python, in chunks of any size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
from msgspec import Struct


def decode_string(raw: str) -> str | None:
    """Decode a JSON string; return None if it is not valid."""
    try:
        return msgspec.json.decode(raw, type=str)
    # UnicodeEncodeError: the text has a lone surrogate, which UTF-8 cannot hold.
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


_ESCAPES = MappingProxyType(
    {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"},
)


_HEX = re.compile(r"[0-9a-fA-F]*")


class EscapeRules(Struct, frozen=True):
    """The escapes of a string syntax.

    single_chars: maps the character after a backslash to the character that the escape
        stands for.
    hex_digits: maps the character after a backslash to the number of hexadecimal digits
        that follow.
    ignored_chars: characters that are not part of the string, such as its quotes.
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
    """Decodes a string incrementally; the JSON quotes are ignored.

    An invalid escape passes unchanged, a lone surrogate becomes U+FFFD.
    """

    def __init__(self, escapes: EscapeRules = JSON_ESCAPES) -> None:
        self._escapes = escapes
        self._plain_text = re.compile("[^\\\\" + escapes.ignored_chars + "]+")
        self._pending = ""
        self._high_surrogate = 0

    def decode(self, raw: str) -> str:
        """Decode the next chunk, except for an incomplete escape at its end."""
        text = self._pending + raw
        pos = 0
        parts = list[str]()
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
        # An incomplete escape, such as `\u` and three digits.
        self._pending = text[pos:]
        return "".join(parts)

    def flush(self) -> str:
        """Return the remaining text, when the string is complete or truncated."""
        pending = self._pending
        self._pending = ""
        return self._flush_surrogate() + pending

    @property
    def is_plain(self) -> bool:
        """Whether plain text that follows passes unchanged."""
        return not self._pending and not self._high_surrogate

    def _decode_escape(self, text: str, pos: int, parts: list[str]) -> int:
        """Decode one escape into `parts`. Return its length in characters, 0 if it is
        incomplete.
        """
        kind = text[pos + 1 : pos + 2]
        if not kind:
            return 0
        size = self._escapes.hex_digits.get(kind, 0)
        digits = _HEX.match(text, pos + 2, pos + 2 + size)
        if size and digits is not None:
            # The number of digits is fixed. With fewer digits the escape is invalid,
            # unless the chunk ends here.
            if digits.end() == pos + 2 + size:
                parts.append(self._decode_code_unit(int(digits.group(), 16)))
                return 2 + size
            if digits.end() == len(text):
                return 0
        parts.append(self._flush_surrogate() + self._escapes.single_chars.get(kind, "\\" + kind))
        return 2

    def _decode_code_unit(self, code: int) -> str:
        """Decode one UTF-16 code unit; the first half of a surrogate pair waits for the
        second.
        """
        # JSON escapes characters above U+FFFF as a pair of UTF-16 code units (RFC 8259,
        # section 7).
        high_surrogate = self._high_surrogate
        self._high_surrogate = 0
        if high_surrogate and 0xDC00 <= code < 0xE000:
            return chr(0x10000 + ((high_surrogate - 0xD800) << 10) + (code - 0xDC00))
        replacement = "\ufffd" if high_surrogate else ""
        if 0xD800 <= code < 0xDC00:
            self._high_surrogate = code
            return replacement
        return replacement + ("\ufffd" if 0xDC00 <= code < 0xE000 or code > 0x10FFFF else chr(code))

    def _flush_surrogate(self) -> str:
        high_surrogate = self._high_surrogate
        self._high_surrogate = 0
        return "\ufffd" if high_surrogate else ""
