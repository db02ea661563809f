"""A call's arguments as the `input` of a tool_use block. Knows no events.

The official SDKs parse all that has come of an input after every piece of it, and raise in the middle of the stream
when that cannot become JSON. So what goes out is at every moment the beginning of a JSON object, whatever the model
wrote: an input that is not valid JSON ends as an object that says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..text import quoted

INVALID = "INVALID_JSON"
"""The key under which Anthropic's documentation wants arguments that are no JSON."""
MAX_DEPTH = 100
MAX_NUMBER = 1_000
"""Characters. Beyond these two the parsers of some clients give up."""

_BLANKS = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r'[^ \t\r\n,:"\[\]{}]+')
_VALID_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_REPLACEMENT = r"\ufffd"


class ToolInput:
    """Takes the arguments in any pieces.

    A string goes out as it comes, anything else when it is complete, a key only together with its value, and the last
    bracket at the end. Strings that some parsers refuse are mended: a backslash that escapes nothing is doubled,
    control characters are escaped, half a surrogate pair becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._raw: list[str] = []
        self._undecided = ""
        self._held: list[str] = []
        """Read, and not to be sent before a value follows."""
        self._sent: list[str] = []
        self._complete = 0
        """How many of `_sent` there were when no string was open."""
        self._closers: list[str] = []
        self._expects: Callable[[ToolInput, str, int], int] = ToolInput._root
        self._broken = False

    def feed(self, text: str) -> str:
        """What of it may be sent; possibly nothing."""
        self._raw.append(text)
        if self._broken:
            return ""
        before, text, at = len(self._sent), self._undecided + text, 0
        while at < len(text):
            step = self._expects(self, text, at)
            if not step:
                break
            at += step
        self._undecided = "" if self._broken else text[at:]
        return "".join(self._sent[before:])

    def end(self, *, cut: bool) -> str:
        """What is still to be sent. cut: the answer was cut off here, so that what is missing is nobody's mistake."""
        if self._expects is ToolInput._nothing and not self._broken:
            return self._send(whole=True)
        raw = "".join(self._raw)
        if not self._broken and (cut or not raw.strip(" \t\r\n")):
            return ""
        return self._confess(raw)

    @property
    def value(self) -> str:
        """The object, as an SDK has it: where it was cut off without the string, number or word that was cut."""
        return "".join(self._sent[: self._complete]) + "".join(reversed(self._closers)) or "{}"

    def _confess(self, raw: str) -> str:
        """Close what is open, and add what the model wrote, all of it."""
        quote = '"' if len(self._sent) > self._complete else ""
        comma = "," if len(self._sent) > 1 else ""
        begin = "" if self._sent else "{"
        ends = "".join(reversed(self._closers[1:]))
        self._held = [begin, quote, ends, comma, f'"{INVALID}":', quoted(raw).decode(), "}"]
        self._closers = []
        return self._send(whole=True)

    def _send(self, *, whole: bool) -> str:
        """Everything held. whole: no string is open behind it."""
        text = "".join(self._held)
        self._held.clear()
        self._sent.append(text)
        if whole:
            self._complete = len(self._sent)
        return text

    def _break(self) -> int:
        self._broken = True
        return 0

    # What may come next. Each returns how many characters it took: none where it needs more of them or broke.

    def _blank(self, text: str, at: int) -> int:
        found = _BLANKS.match(text, at)
        size = found.end() - at if found else 0
        if size:
            self._held.append(text[at : at + size])
        return size

    def _root(self, text: str, at: int) -> int:
        if blank := self._blank(text, at):
            return blank
        return self._open("}", ToolInput._first_key, "{") if text[at] == "{" else self._break()

    def _first_key(self, text: str, at: int) -> int:
        return self._close("}") if text[at] == "}" else self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        if blank := self._blank(text, at):
            return blank
        if text[at] != '"':
            return self._break()
        self._held.append('"')
        self._expects = ToolInput._in_key
        return 1

    def _in_key(self, text: str, at: int) -> int:
        return self._string(text, at)

    def _colon(self, text: str, at: int) -> int:
        if blank := self._blank(text, at):
            return blank
        if text[at] != ":":
            return self._break()
        self._held.append(":")
        self._expects = ToolInput._value
        return 1

    def _first_value(self, text: str, at: int) -> int:
        return self._close("]") if text[at] == "]" else self._value(text, at)

    def _value(self, text: str, at: int) -> int:
        if blank := self._blank(text, at):
            return blank
        match text[at]:
            case '"':
                self._held.append('"')
                self._send(whole=False)
                self._expects = ToolInput._in_string
                return 1
            case "{":
                return self._open("}", ToolInput._first_key, "{")
            case "[":
                return self._open("]", ToolInput._first_value, "[")
            case _:
                return self._scalar(text, at)

    def _in_string(self, text: str, at: int) -> int:
        return self._string(text, at)

    def _comma(self, text: str, at: int) -> int:
        if blank := self._blank(text, at):
            return blank
        if text[at] == self._closers[-1]:
            return self._close(text[at])
        if text[at] != ",":
            return self._break()
        self._held.append(",")
        self._expects = ToolInput._key if self._closers[-1] == "}" else ToolInput._value
        return 1

    def _nothing(self, text: str, at: int) -> int:
        return self._blank(text, at) or self._break()

    def _open(self, closer: str, expects: Callable[[ToolInput, str, int], int], opener: str) -> int:
        if len(self._closers) == MAX_DEPTH:
            return self._break()
        self._closers.append(closer)
        self._held.append(opener)
        self._send(whole=True)
        self._expects = expects
        return 1

    def _close(self, closer: str) -> int:
        """The last bracket stays held: something that may not follow could follow."""
        self._closers.pop()
        self._held.append(closer)
        if self._closers:
            self._send(whole=True)
        self._expects = ToolInput._comma if self._closers else ToolInput._nothing
        return 1

    def _scalar(self, text: str, at: int) -> int:
        found = _SCALAR.match(text, at)
        if found is None or found.end() - at > MAX_NUMBER:
            return self._break()
        if found.end() == len(text):
            return 0
        if not _VALID_SCALAR.fullmatch(found.group()):
            return self._break()
        self._held.append(found.group())
        self._send(whole=True)
        self._expects = ToolInput._comma
        return found.end() - at

    def _string(self, text: str, at: int) -> int:
        if plain := _PLAIN.match(text, at):
            return self._pass(plain.group(), plain.end() - at)
        match text[at]:
            case '"':
                self._held.append('"')
                if self._expects is ToolInput._in_key:
                    self._expects = ToolInput._colon
                else:
                    self._send(whole=True)
                    self._expects = ToolInput._comma
                return 1
            case "\\":
                return self._escape(text, at)
            case control:
                return self._pass(quoted(control).decode()[1:-1], 1)

    def _escape(self, text: str, at: int) -> int:
        found = _ESCAPE.match(text, at)
        if found is None:
            begun = _BEGUN_ESCAPE.fullmatch(text, at)
            return 0 if begun else self._pass("\\\\", 1)
        escape = found.group()
        if escape[1] == "u" and 0xD800 <= int(escape[2:], 16) < 0xE000:
            return self._surrogate(text, at, escape)
        return self._pass(escape, len(escape))

    def _surrogate(self, text: str, at: int, escape: str) -> int:
        if _LOW_SURROGATE.match(escape):
            return self._pass(_REPLACEMENT, 6)
        low = text[at + 6 : at + 12]
        if not _LOW_SURROGATE.match(low + r"\udc00"[len(low) :]):
            return self._pass(_REPLACEMENT, 6)
        return self._pass(escape + low, 12) if len(low) == 6 else 0

    def _pass(self, piece: str, size: int) -> int:
        """A piece of a string. A key's waits for the value."""
        self._held.append(piece)
        if self._expects is ToolInput._in_string:
            self._send(whole=False)
        return size
