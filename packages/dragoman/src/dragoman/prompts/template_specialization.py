"""A template specialized to one shape of conversation: the pieces of text that it writes
between the texts of the messages.

A template is rendered once with texts that are opaque: it may write them, trim white
space from them, and test a few properties of them. Each test is kept as a guard. Any
other use is refused, also by functions of Python and Jinja that know nothing of opaque
texts, since every special method refuses. So whatever other texts stand in their places,
as long as the guards hold, the template takes the same branches and writes the same
pieces.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, cast

from msgspec import Struct


class NotSpecializable(BaseException):
    """The template uses a text in another way than to write or trim it.

    No `Exception`: some of Jinja's tests take these for an answer.
    """


class Trimmed(Struct, frozen=True):
    """A text without white space at an end.

    source: the text.
    trim: `str.strip`, `str.lstrip` or `str.rstrip`.
    characters: what is removed; only white space.
    """

    source: Slot
    trim: Callable[[str, str | None], str]
    characters: str | None

    def build(self, texts: Sequence[str]) -> str:
        source = self.source
        text = texts[source] if isinstance(source, int) else source.build(texts)
        return self.trim(text, self.characters)

    @property
    def number(self) -> int:
        return find_number(self.source)


Slot: TypeAlias = int | Trimmed
"""The place of a text: its number, or what is left of it."""
Parts: TypeAlias = tuple[str | Slot, ...]
"""A text of literals and slots."""


def find_number(slot: Slot) -> int:
    return slot if isinstance(slot, int) else slot.number


def build_text(parts: Sequence[str | Slot], texts: Sequence[str]) -> str:
    """Build a text from its parts, with these texts in the slots."""
    return "".join(
        [
            part
            if isinstance(part, str)
            else texts[part]
            if isinstance(part, int)
            else part.build(texts)
            for part in parts
        ]
    )


class Guard(Struct, frozen=True):
    """A property of a text on which the template's branches depend."""

    test: Callable[[str, str], bool]
    parts: Parts
    argument: str
    expected: bool

    def holds(self, texts: Sequence[str]) -> bool:
        return self.test(build_text(self.parts, texts), self.argument) is self.expected


class Specialization(Struct, frozen=True):
    """What a template writes for a shape of conversation.

    parts: literals and slots.
    guards: must hold for the texts.
    dates: formats and results of `strftime_now`.
    """

    parts: Parts
    guards: tuple[Guard, ...]
    dates: tuple[tuple[str, str], ...]


def _refuse(*_: object) -> object:
    raise NotSpecializable("special method")


class _Opaque:
    """A value that refuses every use."""

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        raise NotSpecializable(name)


for _name in (
    *("eq", "ne", "hash", "len", "iter", "reversed", "getitem", "contains", "str", "repr"),
    *("format", "bytes", "int", "float", "complex", "index", "round", "lt", "le", "gt", "ge"),
    *("add", "radd", "mul", "rmul", "mod", "rmod", "sub", "rsub", "call", "copy", "deepcopy"),
    *("reduce", "reduce_ex"),
):
    setattr(_Opaque, f"__{_name}__", _refuse)


class OpaqueText(_Opaque):
    """A text on which the output of a template does not depend but for its slots.

    parts: what it is made of; at least one slot.
    value: its value in this rendering, by which guards are decided.
    """

    __slots__ = ("parts", "specializer", "value")

    def __init__(self, specializer: Specializer, parts: Parts, value: str) -> None:
        self.specializer = specializer
        self.parts = parts
        self.value = value

    def find_method(self, name: str) -> OpaqueMethod:
        """Return a method of strings."""
        if name not in _TRIMS and name not in _TESTS:
            raise NotSpecializable(name)
        return OpaqueMethod(self, name)

    def trim(self, trim: Callable[[str, str | None], str], characters: object = None) -> OpaqueText:
        source, *others = self.parts
        if (
            others
            or isinstance(source, str)
            # Whatever else is removed could leave nothing.
            or not (characters is None or (isinstance(characters, str) and characters.isspace()))
        ):
            raise NotSpecializable("strip")
        slot = Trimmed(source, trim, characters)
        return OpaqueText(self.specializer, (slot,), trim(self.value, characters))

    def test(self, test: Callable[[str, str], bool], argument: object) -> bool:
        if type(argument) is not str:
            raise NotSpecializable("test")
        result = test(self.value, argument)
        self.specializer.guards[Guard(test, self.parts, argument, result)] = None
        return result

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __eq__(self, other: object) -> bool:
        if type(other) is OpaqueText:
            raise NotSpecializable("comparison of two texts")
        return isinstance(other, str) and self.test(operator.eq, other)

    def __contains__(self, item: object) -> bool:
        return self.test(operator.contains, item)

    def __hash__(self) -> int:
        raise NotSpecializable("hash")

    def __bool__(self) -> bool:
        # Texts of white space alone are not specialized, see `Specializer`.
        return True


class OpaqueMethod(_Opaque):
    """A method of an opaque text, to be called."""

    __slots__ = ("name", "text")

    def __init__(self, text: OpaqueText, name: str) -> None:
        self.text = text
        self.name = name

    def call(self, arguments: Sequence[object]) -> OpaqueText | bool:
        if len(arguments) <= 1 and (trim := _TRIMS.get(self.name)) is not None:
            return self.text.trim(trim, *arguments)
        if len(arguments) == 1 and (test := _TESTS.get(self.name)) is not None:
            return self.text.test(test, arguments[0])
        raise NotSpecializable(self.name)


_TRIMS: dict[str, Callable[[str, str | None], str]] = {
    "strip": str.strip,
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
}
_TESTS: dict[str, Callable[[str, str], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
}


class Specializer:
    """Specializes a template: what is known of its texts while it is rendered.

    texts: the texts in the order of the messages, each with more than white space.
    visible_texts: the same, as the template gets them.
    guards: ordered, without repetitions.
    uses: how often each text was charged to the budget.
    """

    def __init__(self, texts: list[str], visible_texts: list[str]) -> None:
        self._texts = texts
        self._visible_texts = visible_texts
        self._n_visited = 0
        self.guards: dict[Guard, None] = {}
        self.dates: dict[str, str] = {}
        self.uses = [0] * len(texts)

    def visit(self, text: str) -> str:
        """Map the texts to opaque ones; see `StringVisitor`."""
        number = self._n_visited
        # Anything but one text per message depends on more than the shape.
        if self._texts[number : number + 1] != [text]:
            raise NotSpecializable("other texts")
        self._n_visited += 1
        return cast("str", OpaqueText(self, (number,), self._visible_texts[number]))

    def charge(self, text: OpaqueText) -> int:
        """Count a use of a text; return the length of the literals in it."""
        n_chars = 0
        for part in text.parts:
            if isinstance(part, str):
                n_chars += len(part)
            else:
                self.uses[find_number(part)] += 1
        return n_chars

    def join(self, values: Iterable[object]) -> object:
        """Join strings and opaque texts."""
        pieces = list(values)
        if OpaqueText not in map(type, pieces):
            return "".join(cast("list[str]", pieces))
        parts: list[str | Slot] = []
        for piece in pieces:
            # A plain string: Jinja's escaped ones escape what is added to them.
            for part in piece.parts if isinstance(piece, OpaqueText) else (str(piece),):
                if isinstance(part, str) and parts and isinstance(last := parts[-1], str):
                    parts[-1] = last + part
                elif part != "":
                    parts.append(part)
        value = "".join(
            [
                piece.value if isinstance(piece, OpaqueText) else cast("str", piece)
                for piece in pieces
            ]
        )
        return OpaqueText(self, tuple(parts), value)

    def build(self, output: object) -> Specialization:
        """Return what the template does, which wrote this."""
        parts = output.parts if isinstance(output, OpaqueText) else (cast("str", output),)
        return Specialization(parts, tuple(self.guards), tuple(self.dates.items()))
