"""Calls that look like code: `f(x=1, y="z")`, or `call:f{x:1,y:<escape>z<escape>}`.

Every value becomes JSON as it is read: True, true, 'a' and (1, 2) are what they are in Python. Nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec import Struct

from ..core.message import CustomTool, Tool
from ..core.syntax import FreeText, JsonValue, Many, Maybe, Piece, Verbatim
from .base import Found, Lead
from .calls import CallReader
from .forms import Schema, alternatives, free_text, listed, one_of, plain
from .json_text import PYTHON, Seen, StringReader
from .marks import Marks, Until
from .named import Named, named, quoted
from .names import ARGUMENT, NameReader, written
from .parameters import Parameter, enforceable
from .values import decode, encode

_WORDS = MappingProxyType({"True": "true", "False": "false", "None": "null"})
_QUOTE_ENDS = MappingProxyType({"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')})
_CLOSERS = MappingProxyType({"(": ")", "[": "]", "{": "}"})
_KEY_ENDS = re.compile(r"[:,\]}]")
_NO_MARKS = Marks(["\0"])
_JSON = MappingProxyType({")": "]", "]": "]", "}": "}"})


class Literals(Struct, frozen=True):
    """open, close: around the arguments. assign: between an argument's name and its value.

    prefix: stands before every name. mark: stands on both sides of a string that has no escapes, beside quotes;
    where there is one, names in nested objects are bare and so may strings be.
    """

    open: str = "("
    close: str = ")"
    assign: str = "="
    prefix: str = ""
    mark: str = ""

    def shape(self, outer: tuple[str, ...]) -> LiteralCalls:  # noqa: ARG002
        return LiteralCalls(self)


class LiteralCalls:
    def __init__(self, syntax: Literals) -> None:
        self.syntax = syntax
        self.string_marks = Marks([syntax.mark]) if syntax.mark else None
        self.word_ends = re.compile(r"[,\]})]" if syntax.mark else r"[,\]})\s:=(\[{\"']")

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.syntax.mark,) if self.syntax.mark else ()

    @property
    def ends(self) -> tuple[str, ...]:
        return ()

    def begins(self, char: str) -> bool:
        return char.isalpha() or char == "_"

    def reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return LiteralReader(self, tools)

    def pieces(self, tool: Tool) -> tuple[Piece, ...]:
        known, own = enforceable(tool), self.syntax
        comma = Verbatim("," if own.mark else ", ")
        said = listed([(self._argument(one), one.required) for one in known.named], comma)
        if known.open:
            any = FreeText(own.assign, pattern="[A-Za-z_][A-Za-z0-9_]*"), JsonValue(None, any=True)
            said = (Maybe((*any, Many((comma, *any)))),)
        return Verbatim(own.prefix + written(tool.name) + own.open), *said, Verbatim(own.close)

    def _argument(self, one: Parameter) -> tuple[Piece, ...]:
        head = Verbatim(written(one.name, ARGUMENT) + self.syntax.assign)
        return head, *one_of([self._value(schema) for schema in alternatives(one.schema)])

    def _value(self, schema: Schema) -> tuple[Piece, ...]:
        mark = self.syntax.mark
        match schema:
            case {"const": str() as word} if mark:
                return (Verbatim(mark + plain(word, (mark,)) + mark),)
            case {"type": "string"} if mark:
                return Verbatim(mark), free_text(schema, mark)
            case {"type": "boolean"} if not mark:
                return one_of([(Verbatim("True"),), (Verbatim("False"),)])
            case {"type": "null"} if not mark:
                return (Verbatim("None"),)
            case _:
                return (JsonValue(encode(schema), any=True),)


class LiteralReader:
    """The name, and then arguments, each a name and a value."""

    id: str | None = None
    ended_by = ""

    def __init__(self, calls: LiteralCalls, tools: Mapping[str, Tool]) -> None:
        self._calls = calls
        self._syntax = calls.syntax
        self._tools = tools
        self._state: Callable[[LiteralReader, str, int], tuple[int, Seen]] = (
            LiteralReader._in_prefix if calls.syntax.prefix else LiteralReader._in_name
        )
        self._lead = Lead((calls.syntax.prefix,))
        self._name = NameReader()
        self._named: Named = named(custom=False)
        self._value = LiteralValue(calls)
        self._out: list[str] = []
        self.name = ""
        self.begun = self.undeclared = self.complete = self.custom = False

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        seen = Seen.MORE
        while at < len(text) and seen is Seen.MORE:
            at, seen = self._state(self, text, at)
        if seen is Seen.BAD:
            self.end()
        return at, seen

    def _in_prefix(self, text: str, at: int) -> tuple[int, Seen]:
        at, found = self._lead.read(text, at)
        if found is Found.MARK:
            self._state = LiteralReader._in_name
        return at, Seen.BAD if found is Found.OTHER else Seen.MORE

    def _in_name(self, text: str, at: int) -> tuple[int, Seen]:
        """A name, and the bracket right behind it."""
        at, over = self._name.read(text, at)
        if not over:
            return at, Seen.MORE
        if not self._name.name or text[at] != self._syntax.open:
            return at, Seen.BAD
        self.name = self._name.name
        tool = self._tools.get(self.name)
        self.begun, self.undeclared = tool is not None, tool is None
        self.custom = isinstance(tool, CustomTool)
        self._named = named(custom=self.custom)
        self._state = LiteralReader._before_argument
        return at + 1, Seen.MORE

    def _before_argument(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at].isspace():
            return at + 1, Seen.MORE
        if text[at] == self._syntax.close:
            return self._close(at)
        self._name, self._state = NameReader(ARGUMENT), LiteralReader._in_argument
        return at, Seen.MORE

    def _in_argument(self, text: str, at: int) -> tuple[int, Seen]:
        at, over = self._name.read(text, at)
        if over:
            self._state = LiteralReader._before_value
        return at, Seen.BAD if over and not self._name.name else Seen.MORE

    def _before_value(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at].isspace():
            return at + 1, Seen.MORE
        if text[at] != self._syntax.assign:
            return at, Seen.BAD
        self._say(self._named.key(self._name.name))
        self._value, self._state = LiteralValue(self._calls), LiteralReader._in_value
        return at + 1, Seen.MORE

    def _in_value(self, text: str, at: int) -> tuple[int, Seen]:
        value = self._value
        began = value.is_text
        at, seen = value.read(text, at)
        if value.is_text and not began:
            self._say(self._named.open())
        self._say_value()
        if seen is Seen.END:
            if value.is_text:
                self._say(self._named.close())
            self._state = LiteralReader._behind_value
        return at, Seen.BAD if seen is Seen.BAD else Seen.MORE

    def _behind_value(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at].isspace():
            return at + 1, Seen.MORE
        if text[at] == self._syntax.close:
            return self._close(at)
        self._state = LiteralReader._before_argument
        return (at + 1, Seen.MORE) if text[at] == "," else (at, Seen.BAD)

    def _close(self, at: int) -> tuple[int, Seen]:
        self.complete = True
        self._say(self._named.end())
        return at + 1, Seen.CLOSE

    def _say_value(self) -> None:
        out = self._value.out()
        self._say(self._named.text(out) if self._value.is_text else self._named.json(out))

    def _say(self, text: str) -> None:
        if self.begun and text:
            self._out.append(text)

    def passes(self, text: str) -> bool:
        inside = self._state is LiteralReader._in_value and self._value.passes(text)
        return inside and self._named.text(text) == text

    def arguments(self) -> str:
        out = "".join(self._out)
        self._out.clear()
        return out

    def end(self) -> None:
        if self._state is LiteralReader._in_value:
            self._value.end()
            self._say_value()


class LiteralValue:
    """One value, read into JSON; into the text that it means if it is a string."""

    def __init__(self, calls: LiteralCalls) -> None:
        self._mark = calls.syntax.mark
        self._string_marks = calls.string_marks
        self._word_ends = calls.word_ends
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
        self._out: list[str] = []
        self.is_text = False

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        """Read on: MORE, END behind the value, or BAD at the character that cannot stand there."""
        seen = Seen.MORE
        while at < len(text) and seen is Seen.MORE:
            at, seen = self._state(self, text, at)
        return at, seen

    def out(self) -> str:
        """What has come of it since this was last asked."""
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
        if self._closers and char == self._closers[-1]:
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
            return at + 1, Seen.MORE
        else:
            self._word.clear()
            self._state = LiteralValue._in_word
        return at, Seen.MORE

    def _open_string(self, quote: str) -> None:
        self._quote, self._string = quote, StringReader(PYTHON)
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
        self._say(self._string.end())
        return self._close_string(found.end())

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
        if text[at] != ":":
            return at, Seen.BAD
        self._out.append(": ")
        self._key, self._state = False, LiteralValue._before
        return at + 1, Seen.MORE

    def _behind(self, text: str, at: int) -> tuple[int, Seen]:
        """A comma or the end of a list."""
        char = text[at]
        if char.isspace():
            return at + 1, Seen.MORE
        if char == self._closers[-1]:
            return self._close(at)
        self._comma, self._state = True, LiteralValue._before
        self._key = self._closers[-1] == "}"
        return (at + 1, Seen.MORE) if char == "," else (at, Seen.BAD)

    def _close(self, at: int) -> tuple[int, Seen]:
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
