"""Calls that write each argument between tags: `<function=f><parameter=x>1</parameter></function>`.

What stands between two tags is text; the tool's schema says what it means. A string streams as it comes, and so do an
object and an array, which are JSON; anything else is read when it is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from ..core.message import CustomTool, Tool
from ..core.syntax import FreeText, JsonValue, Many, Maybe, Piece, Verbatim
from .base import Found, Lead
from .calls import CallReader
from .forms import Schema, alternatives, free_text, one_of, plain
from .json_text import Seen, ValueReader
from .marks import Marks, Until
from .named import Named, named
from .names import NameReader, written
from .parameters import Parameter, Parameters, enforceable, parameters
from .values import coerce, encode, guess, number


class Tagged(Struct, frozen=True):
    """head: behind the function's name; before it stands the frame's mark. end: closes the call.

    key: before the name of an argument. key_ends: behind it, and whether the value is then text (None: the schema
    decides). value: a tag of its own before the value. value_end: behind it.
    lines, inner, pad: white space where calls are enforced: behind the head and every argument, between the two tags
    of an argument, and on both sides of a value; a newline there is never part of a value that has a pad.
    """

    head: str
    key: str
    key_ends: tuple[tuple[str, bool | None], ...]
    value_end: str
    end: str
    value: str = ""
    lines: str = "\n"
    inner: str = ""
    pad: str = ""

    def shape(self, outer: tuple[str, ...]) -> TaggedCalls:
        return TaggedCalls(self, outer)


class TaggedCalls:
    """outer: marks that end a call although its own end was not written."""

    def __init__(self, syntax: Tagged, outer: tuple[str, ...]) -> None:
        self.syntax = syntax
        self.outer = outer
        self.key_ends = dict(syntax.key_ends)
        self.key_marks = Marks(list(self.key_ends))
        forgotten = ("\n" + syntax.key, "\n" + syntax.end)
        self.value_marks = Marks([syntax.value_end, syntax.pad + syntax.value_end, *forgotten])
        self.never_in_values = (*forgotten, syntax.value_end)

    @property
    def marks(self) -> tuple[str, ...]:
        own = self.syntax
        texts = (own.head, own.key, *(text for text, _ in own.key_ends), own.value, own.value_end, own.end)
        return tuple(filter(None, texts))

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.syntax.end,)

    def begins(self, char: str) -> bool:  # noqa: ARG002
        return False

    def reader(self, tools: Mapping[str, Tool], char: str) -> CallReader:  # noqa: ARG002
        return TaggedReader(self, tools)

    def pieces(self, tool: Tool) -> tuple[Piece, ...]:
        known, own = enforceable(tool), self.syntax
        arguments = (self._argument(one) for one in known.named)
        said = (
            piece
            for pieces, one in zip(arguments, known.named, strict=True)
            for piece in (pieces if one.required else (Maybe(pieces),))
        )
        others = (Many(self._any_argument()),) if known.open else ()
        return Verbatim(written(tool.name) + own.head + own.lines), *said, *others, Verbatim(own.end)

    def _argument(self, one: Parameter) -> tuple[Piece, ...]:
        name = plain(one.name, [*self.key_ends, "\n"])
        return Verbatim(self.syntax.key + name), *one_of(list(self._values(alternatives(one.schema))))

    def _values(self, schemas: list[Schema]) -> Iterator[tuple[Piece, ...]]:
        """How the key may end, and what may follow then."""
        for ending, is_text in self.syntax.key_ends:
            before, after = self._around(ending)
            for schema in schemas:
                match schema:
                    case {"const": str() as word} if is_text is not False:
                        yield (Verbatim(before + plain(word, self.never_in_values) + after),)
                    case {"const": str()} | {"type": "string"} if is_text is False:
                        pass
                    case {"type": "string"}:
                        yield Verbatim(before), free_text(schema, after, self.never_in_values)
                    case {"type": _} | {"const": _} if is_text is not True:
                        yield Verbatim(before), JsonValue(encode(schema), any=True), Verbatim(after)
                    case {"type": _} | {"const": _}:
                        pass
                    case _ if is_text is not False:
                        yield Verbatim(before), FreeText(after, self.never_in_values)
                    case _:
                        pass

    def _any_argument(self) -> tuple[Piece, ...]:
        ending = next(text for text, kind in self.syntax.key_ends if kind is not False)
        before, after = self._around(ending)
        key = FreeText(before, pattern="[A-Za-z_][A-Za-z0-9_]*")
        return Verbatim(self.syntax.key), key, FreeText(after, self.never_in_values)

    def _around(self, ending: str) -> tuple[str, str]:
        own = self.syntax
        tag = own.inner + own.value if own.value else ""
        return ending + tag + own.pad, own.pad + own.value_end + own.lines


class TaggedReader:
    """The name, and then arguments, each a key and a value."""

    id: str | None = None

    def __init__(self, calls: TaggedCalls, tools: Mapping[str, Tool]) -> None:
        self._calls = calls
        self._syntax = calls.syntax
        self._tools = tools
        self._state: Callable[[TaggedReader, str, int], tuple[int, Seen]] = TaggedReader._in_name
        self._name = NameReader()
        self._lead = Lead(())
        self._until = Until(calls.key_marks)
        self._key: list[str] = []
        self._types: tuple[str, ...] = ()
        self._value = ValueReader()
        self._held: list[str] = []
        self._parameters = Parameters((), open=True)
        self._named: Named = named(custom=False)
        self._out: list[str] = []
        self._padded = False
        self.name = self.ended_by = ""
        self.begun = self.undeclared = self.complete = self.custom = False

    def read(self, text: str, at: int) -> tuple[int, Seen]:
        seen = Seen.MORE
        while at < len(text) and seen is Seen.MORE:
            at, seen = self._state(self, text, at)
        if seen is Seen.BAD:
            self.end()
        return at, seen

    def _in_name(self, text: str, at: int) -> tuple[int, Seen]:
        at, over = self._name.read(text, at)
        if over:
            self._state, self._lead = TaggedReader._in_head, Lead((self._syntax.head,))
        return at, Seen.BAD if over and not self._name.name else Seen.MORE

    def _in_head(self, text: str, at: int) -> tuple[int, Seen]:
        found = Found.MARK
        if self._syntax.head:
            at, found = self._lead.read(text, at)
        if found is Found.MARK:
            self._begin()
        return at, Seen.BAD if found is Found.OTHER else Seen.MORE

    def _begin(self) -> None:
        self.name = self._name.name
        tool = self._tools.get(self.name)
        self.undeclared = tool is None
        self.begun = tool is not None
        if tool is not None:
            self.custom = isinstance(tool, CustomTool)
            self._named = named(custom=self.custom)
            self._parameters = parameters(tool)
        self._to_arguments()

    def _to_arguments(self) -> None:
        self._state = TaggedReader._between
        self._lead = Lead((self._syntax.key, self._syntax.end, *self._calls.outer))

    def _between(self, text: str, at: int) -> tuple[int, Seen]:
        at, found = self._lead.read(text, at)
        if found is not Found.MARK:
            return at, Seen.BAD if found is Found.OTHER else Seen.MORE
        return at, self._tag(self._lead.mark)

    def _tag(self, mark: str) -> Seen:
        """A tag between arguments: another one begins, or the call ends."""
        if mark == self._syntax.key:
            self._state, self._until = TaggedReader._in_key, Until(self._calls.key_marks)
            self._key.clear()
            return Seen.MORE
        self.complete = True
        self.ended_by = "" if mark == self._syntax.end else mark
        self._say(self._named.end())
        return Seen.CLOSE

    def _in_key(self, text: str, at: int) -> tuple[int, Seen]:
        at, key = self._until.read(text, at)
        self._key.append(key)
        if not self._until.mark:
            return at, Seen.MORE
        key, is_text = "".join(self._key).strip(), self._calls.key_ends[self._until.mark]
        self._say(self._named.key(key))
        self._types = ("string",) if is_text else self._parameters.types(key)
        if self._syntax.value:
            self._state, self._lead = TaggedReader._before_value, Lead((self._syntax.value,))
        else:
            self._begin_value()
        return at, Seen.MORE

    def _before_value(self, text: str, at: int) -> tuple[int, Seen]:
        at, found = self._lead.read(text, at)
        if found is Found.MARK:
            self._begin_value()
        return at, Seen.BAD if found is Found.OTHER else Seen.MORE

    def _begin_value(self) -> None:
        self._until = Until(self._calls.value_marks)
        self._padded = bool(self._syntax.pad)
        self._held.clear()
        if self._types == ("string",):
            self._state = TaggedReader._in_text
            self._say(self._named.open())
        elif self._types and not set(self._types) - {"object", "array"}:
            self._state, self._value = TaggedReader._before_json, ValueReader()
        else:
            self._state = TaggedReader._in_value

    def _in_text(self, text: str, at: int) -> tuple[int, Seen]:
        if self._padded:
            self._padded = False
            if text[at] == "\n":
                return at + 1, Seen.MORE
        at, words = self._until.read(text, at)
        self._say(self._named.text(words))
        if self._until.mark:
            self._say(self._named.close())
        return self._behind_value(at)

    def _before_json(self, text: str, at: int) -> tuple[int, Seen]:
        if text[at].isspace():
            return at + 1, Seen.MORE
        self._state = TaggedReader._in_json if text[at] in "{[" else TaggedReader._in_value
        return at, Seen.MORE

    def _in_json(self, text: str, at: int) -> tuple[int, Seen]:
        """Marks within the strings of JSON mean nothing."""
        start = at
        at, seen = self._value.read(text, at)
        self._say(self._named.json(text[start:at]))
        if seen is not Seen.MORE:
            self._state = TaggedReader._behind_json
        return at, Seen.MORE

    def _behind_json(self, text: str, at: int) -> tuple[int, Seen]:
        """What is not valid JSON stays as it is."""
        at, rest = self._until.read(text, at)
        self._say(self._named.json(rest))
        return self._behind_value(at)

    def _in_value(self, text: str, at: int) -> tuple[int, Seen]:
        at, raw = self._until.read(text, at)
        self._held.append(raw)
        if self._until.mark:
            raw = "".join(self._held)
            raw = raw.removeprefix("\n") if self._syntax.pad else raw
            self._typed(raw)
        return self._behind_value(at)

    def _typed(self, raw: str) -> None:
        """A whole value: of a type that the schema allows if it can be, else the string that it is."""
        digits = number(raw, self._types)
        value = coerce(raw, self._types) if self._types else guess(raw)
        if digits is not None:
            self._say(self._named.json(digits))
        elif isinstance(value, str):
            self._say(self._named.open() + self._named.text(value) + self._named.close())
        else:
            self._say(self._named.json(encode(value)))

    def _behind_value(self, at: int) -> tuple[int, Seen]:
        if not self._until.mark:
            return at, Seen.MORE
        mark = self._until.mark.removeprefix("\n")
        self._to_arguments()
        return at, Seen.MORE if mark == self._syntax.value_end else self._tag(mark)

    @property
    def awaits_mark(self) -> bool:
        return self._state is TaggedReader._between

    def _say(self, text: str) -> None:
        if self.begun and text:
            self._out.append(text)

    def passes(self, text: str) -> bool:
        return (
            self._state is TaggedReader._in_text
            and not self._padded
            and self._until.passes(text)
            and self._named.text(text) == text
        )

    def arguments(self) -> str:
        out = "".join(self._out)
        self._out.clear()
        return out

    def end(self) -> None:
        if self.complete:
            return
        held = self._until.end()
        if self._state is TaggedReader._in_text:
            self._say(self._named.text(held))
        elif self._state in (TaggedReader._in_value, TaggedReader._behind_json):
            self._say(self._named.json("".join(self._held) + held))
