"""Calls that look like code: `f(x=1, y="z")`, or `call:f{x:1,y:<escape>z<escape>}`.

Every value becomes JSON as it is read: True, true, 'a' and (1, 2) are what they are in Python. Nothing is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from ..core.message import CustomTool, Tool
from ..core.syntax import FreeText, JsonValue, Many, Maybe, Piece, Verbatim
from .base import Found, Lead
from .calls import CallReader
from .forms import Schema, alternatives, free_text, listed, one_of, plain
from .json_text import Seen
from .literal_value import LiteralValue, Strings
from .named import Named, named
from .names import ARGUMENT, NameReader, written
from .parameters import Parameter, enforceable
from .values import encode


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
        self.strings = Strings(syntax.mark)

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
    awaits_mark = False

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
        self._value = LiteralValue(calls.strings)
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
        self._value, self._state = LiteralValue(self._calls.strings), LiteralReader._in_value
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
