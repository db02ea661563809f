"""One value of a call that looks like code, read into JSON as it comes. Nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import MappingProxyType

from .base import Found, Lead
from .json_text import PYTHON, Seen, StringReader
from .marks import Marks, Until
from .named import quoted
from .values import decode, encode

_WORDS = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_QUOTE_ENDS = MappingProxyType({"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')})
_CLOSERS = MappingProxyType({"(": ")", "[": "]", "{": "}"})
_KEY_ENDS = re.compile(r"[:,\]}]")
_NO_MARKS = Marks(["\0"])
_JSON = MappingProxyType({")": "]", "]": "]", "}": "}", "} ": "]"})
"""What a bracket that closes is in JSON; "} " closes a set."""
_BEHIND_STRINGS = frozenset(",:)]}; \t\r\n")


class Strings:
    """How strings are written. mark: on both sides of one, "" for none; where there is one, words need no marks."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.marks = Marks([mark]) if mark else None
        self.word_ends = re.compile(r"[,\]})]" if mark else r"[,\]})\s:=(\[{\"']")


class LiteralValue:
    """One value, read into JSON; into the text that it means if it is a string."""

    def __init__(self, strings: Strings) -> None:
        self._mark = strings.mark
        self._string_marks = strings.marks
        self._word_ends = strings.word_ends
        self._state: Callable[[LiteralValue, str, int], tuple[int, Seen]] = LiteralValue._before
        self._closers: list[str] = []
        self._key = False  # what is read is a name in an object
        self._comma = False
        self._lead = Lead(())
        self._quote = ""
        self._escaped = False
        self._string = StringReader(PYTHON)
        self._until = Until(_NO_MARKS)
        self._word: list[str] = []
        self._raw = ""
        self._out: list[str] = []
        self._brace: int | None = None  # where in the output a `{` stands of which it is open what it begins
        self.is_text = False

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        """Read on: MORE, END behind the value, or BAD at the character that cannot stand there."""
        seen = Seen.MORE
        while at < len(text) and seen is Seen.MORE:
            at, seen = self._state(self, text, at)
        return at, seen

    def out(self) -> str:
        """What has come of it since this was last asked, and is decided."""
        if self._brace is not None:
            return ""
        out = "".join(self._out)
        self._out.clear()
        return out

    def passes(self, text: str) -> bool:
        """Whether this text only goes on with a string, and means itself."""
        if not self.is_text:
            return False
        if self._state is LiteralValue._in_marked:
            return self._until.passes(text)
        plain = self._quote not in text and "\\" not in text
        return self._state is LiteralValue._in_string and not self._escaped and self._string.settled and plain

    def end(self) -> None:
        """It will not go on: what was held."""
        self._brace = None
        if self._state is LiteralValue._in_string:
            self._say(self._string.end())
        elif self._state is LiteralValue._in_marked:
            self._say(self._until.end())
        else:
            self._out.extend(self._word)

    def _before(self, text: str, at: int) -> tuple[int, Seen]:
        char = text[at]
        if char.isspace():
            return at + 1, Seen.MORE
        if self._closers and char == self._closers[-1].strip():
            return self._close(at)
        if self._comma:
            self._out.append(", ")
            self._comma = False
        if char in _QUOTE_ENDS:
            self._open_string(char)
            self._state = LiteralValue._in_string
            return at + 1, Seen.MORE
        if self._mark and char == self._mark[0]:
            self._lead, self._state = Lead((self._mark,)), LiteralValue._before_marked
        elif char in _CLOSERS and not self._key:
            self._closers.append(_CLOSERS[char])
            self._out.append("{" if char == "{" else "[")
            self._key = char == "{"
            if self._key and self._brace is None and not self._mark:
                self._brace = len(self._out) - 1
            return at + 1, Seen.MORE
        else:
            self._word.clear()
            self._state = LiteralValue._in_word
        return at, Seen.MORE

    def _open_string(self, quote: str) -> None:
        self._quote, self._string, self._raw = quote, StringReader(PYTHON), ""
        self.is_text = not self._closers
        if not self.is_text:
            self._out.append('"')

    def _say(self, text: str) -> None:
        self._out.append(text if self.is_text else quoted(text))

    def _in_string(self, text: str, at: int) -> tuple[int, Seen]:
        if self._escaped:
            self._escaped = False
            self._say(self._string.read(text[at]))
            return at + 1, Seen.MORE
        found = _QUOTE_ENDS[self._quote].search(text, at)
        if found is None:
            self._say(self._string.read(text[at:]))
            return len(text), Seen.MORE
        self._escaped = found.group() == "\\"
        self._say(self._string.read(text[at : found.end() if self._escaped else found.start()]))
        if self._escaped:
            return found.end(), Seen.MORE
        self._state = LiteralValue._behind_quote
        return found.end(), Seen.MORE

    def _behind_quote(self, text: str, at: int) -> tuple[int, Seen]:
        """A quote behind which no value can end is one of the string, which the model forgot to escape."""
        if text[at] not in _BEHIND_STRINGS:
            self._say(self._string.read(self._quote))
            self._state = LiteralValue._in_string
            return at, Seen.MORE
        self._say(self._string.end())
        return self._close_string(at)

    def _close_string(self, at: int) -> tuple[int, Seen]:
        if not self.is_text:
            self._out.append('"')
        return self._value_over(at)

    def _before_marked(self, text: str, at: int) -> tuple[int, Seen]:
        at, found = self._lead.read(text, at)
        if found is Found.MARK and self._string_marks is not None:
            self._open_string("")
            self._until, self._state = Until(self._string_marks), LiteralValue._in_marked
        return at, Seen.BAD if found is Found.OTHER else Seen.MORE

    def _in_marked(self, text: str, at: int) -> tuple[int, Seen]:
        at, words = self._until.read(text, at)
        self._say(words)
        return self._close_string(at) if self._until.mark else (at, Seen.MORE)

    def _in_word(self, text: str, at: int) -> tuple[int, Seen]:
        """A number, a constant, or a bare string."""
        ends = _KEY_ENDS if self._key else self._word_ends
        found = ends.search(text, at)
        end = len(text) if found is None else found.start()
        self._word.append(text[at:end])
        if found is None:
            return end, Seen.MORE
        raw = "".join(self._word)
        value = self._json(raw.strip())
        if value is None:
            return end, Seen.BAD
        self._word.clear()
        self._raw = raw.strip()
        self._out.append(value)
        return self._value_over(end)

    def _json(self, word: str) -> str | None:
        """What a bare word means; None if it means nothing."""
        if self._key:
            return encode(word) if word else None
        if word in _WORDS:
            return _WORDS[word]
        number = _number(word)
        if number is not None:
            return number
        return encode(word) if self._mark and word else None

    def _value_over(self, at: int) -> tuple[int, Seen]:
        if self._key:
            self._state = LiteralValue._colon
            return at, Seen.MORE
        self._state = LiteralValue._behind
        return at, Seen.MORE if self._closers else Seen.END

    def _colon(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at].isspace():
            return at + 1, Seen.MORE
        if text[at] in ",}" and self._brace is not None and self._out[self._brace] == "{":
            return self._to_set(at)
        if text[at] != ":":
            return at, Seen.BAD
        self._brace = None
        self._out.append(": ")
        self._key, self._state = False, LiteralValue._before
        return at + 1, Seen.MORE

    def _to_set(self, at: int) -> tuple[int, Seen]:
        """What began as an object is a set: JSON has lists."""
        assert self._brace is not None
        if self._raw:
            value, self._key = self._raw, False
            self._out[self._brace + 1 :] = [self._json(value) or encode(value)]
        self._out[self._brace], self._brace = "[", None
        self._closers[-1] = "} "
        self._key, self._state = False, LiteralValue._behind
        return at, Seen.MORE

    def _behind(self, text: str, at: int) -> tuple[int, Seen]:
        """A comma or the end of a list."""
        char = text[at]
        if char.isspace():
            return at + 1, Seen.MORE
        if char == self._closers[-1].strip():
            return self._close(at)
        self._comma, self._state = True, LiteralValue._before
        self._key = self._closers[-1] == "}"
        return (at + 1, Seen.MORE) if char == "," else (at, Seen.BAD)

    def _close(self, at: int) -> tuple[int, Seen]:
        self._brace = None
        self._out.append(_JSON[self._closers.pop()])
        self._comma = self._key = False
        return self._value_over(at + 1)


def _number(word: str) -> str | None:
    """A number (or true, false, null) as JSON."""
    try:
        decode(word)
    except ValueError:
        return _python_number(word)
    return word


def _python_number(word: str) -> str | None:
    """`1_000`, `.5` and `+1`, which JSON does not know."""
    try:
        whole = word.lstrip("+-").replace("_", "").isdecimal()
        number = int(word) if whole else float(word)
    except ValueError:
        return None
    return encode(number) if number - number == 0 else None
