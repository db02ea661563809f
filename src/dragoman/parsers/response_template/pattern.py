"""The regular expressions that response templates may use, read into a tree and then into a program.

The subset: characters, escapes, classes, `.`, groups (plain, `(?:`, `(?P<name>`), `|`, the quantifiers with their
lazy forms, and `^` and `$` for the ends of the answer. Python's meaning of it, with `.` matching newlines too.
Look-around, back-references, word borders, flags, possessive and atomic forms are refused: without them one pass
over the text is enough, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct


class Chars(Struct, frozen=True):
    """One character. source: a regular expression of it. text: the character, where it can only be one."""

    source: str
    text: str | None = None


class Begin(Struct, frozen=True):
    """The beginning of the answer."""


class End(Struct, frozen=True):
    """The end of the answer."""


class Row(Struct, frozen=True):
    items: tuple[Node, ...]


class Either(Struct, frozen=True):
    options: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """most: None is without end."""

    item: Node
    least: int
    most: int | None
    lazy: bool


class Group(Struct, frozen=True):
    """name: None for a group that captures nothing by name."""

    name: str | None
    item: Node


Node = Chars | Begin | End | Row | Either | Repeat | Group

MOST_COPIES = 500
"""What a counted repetition may be unrolled to."""

_ESCAPED_CLASSES = frozenset("dDsSwW")
_ESCAPED_CHARS = MappingProxyType(
    {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"},
)
_HEX = MappingProxyType({"x": 2, "u": 4, "U": 8})
_COUNT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_NAME = re.compile(r"\(\?P<([A-Za-z_]\w*)>")


class Unsupported(ValueError):
    """Outside the subset, or no regular expression at all."""


def literal(text: str) -> Node:
    return Row(tuple(_char(char) for char in text))


def either(texts: Sequence[str]) -> Node:
    """Any of these texts, the longest that fits."""
    return Either(tuple(literal(text) for text in sorted(texts, key=len, reverse=True)))


def parse(source: str) -> Node:
    """Raises Unsupported, saying what cannot be read and where."""
    try:
        re.compile(source, re.DOTALL)
    except re.error as error:
        raise Unsupported(f"invalid regular expression {source!r}: {error}") from error
    reader = _Reader(source)
    node = reader.options()
    if reader.at < len(source):
        raise reader.unsupported("an unbalanced ')'")
    return node


def _char(char: str) -> Chars:
    return Chars(re.escape(char), char)


class _Reader:
    """Recursive descent; what `re` accepts is known to be well-formed."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0

    def unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"{what} at position {self.at} of {self.source!r} is not supported")

    def _peek(self) -> str:
        return self.source[self.at : self.at + 1]

    def _starts(self, text: str) -> bool:
        return self.source.startswith(text, self.at)

    def options(self) -> Node:
        options = [self._row()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._row())
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _row(self) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            items.append(self._repeated(self._atom()))
        return Row(tuple(items))

    def _repeated(self, item: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return item
        lazy = self._peek() == "?"
        if self._peek() == "+":
            raise self.unsupported("a possessive quantifier")
        self.at += lazy
        if self._bounds() is not None:
            raise self.unsupported("a quantifier of a quantifier")
        if isinstance(item, Begin | End):
            raise self.unsupported("a repeated ^ or $")
        if bounds[1] != 1 and can_be_empty(item):
            raise self.unsupported("a repetition of what can be empty")
        return Repeat(item, bounds[0], bounds[1], lazy)

    def _bounds(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self.at += 1
            return simple
        count = _COUNT.match(self.source, self.at)
        if count is None or count.group() in ("{}", "{,}"):
            return None
        self.at = count.end()
        least = int(count[1] or 0)
        most = least if not count[2] else int(count[3]) if count[3] else None
        if max(least, most or 0) > MOST_COPIES:
            raise self.unsupported(f"a count above {MOST_COPIES}")
        return least, most

    def _atom(self) -> Node:
        char = self._peek()
        match char:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case "\\":
                return self._escape()
            case ".":
                self.at += 1
                return Chars(r"[\s\S]")
            case "^" | "$":
                self.at += 1
                return Begin() if char == "^" else End()
            case _:
                self.at += 1
                return _char(char)

    def _group(self) -> Node:
        name = None
        named = _NAME.match(self.source, self.at)
        if named is not None:
            name = named[1]
            self.at = named.end()
        elif self._starts("(?:"):
            self.at += 3
        elif self._starts("(?"):
            raise self.unsupported(f"{self.source[self.at : self.at + 4]!r}")
        else:
            self.at += 1
        item = self.options()
        self.at += 1
        return Group(name, item)

    def _class(self) -> Node:
        """A class is left to `re`: it is one character, so that nothing can backtrack."""
        begin, self.at = self.at, self.at + 1
        self.at += self._peek() == "^"
        self.at += self._peek() == "]"
        while self._peek() != "]":
            self.at += 2 if self._peek() == "\\" else 1
        self.at += 1
        return Chars(self.source[begin : self.at])

    def _escape(self) -> Node:
        kind = self.source[self.at + 1]
        if kind in _ESCAPED_CLASSES:
            self.at += 2
            return Chars("\\" + kind)
        if kind in "AZ":
            self.at += 2
            return Begin() if kind == "A" else End()
        if kind in _HEX:
            digits = self.source[self.at + 2 : self.at + 2 + _HEX[kind]]
            self.at += 2 + len(digits)
            return _char(chr(int(digits, 16)))
        if kind.isalnum() and kind not in _ESCAPED_CHARS:
            raise self.unsupported(f"'\\{kind}'")
        self.at += 2
        return _char(_ESCAPED_CHARS.get(kind, kind))


def names(node: Node) -> frozenset[str]:
    """The names of its groups."""
    match node:
        case Row(items) | Either(items):
            return frozenset[str]().union(*map(names, items))
        case Repeat(item):
            return names(item)
        case Group(name, item):
            return names(item) if name is None else names(item) | {name}
        case _:
            return frozenset()


def can_be_empty(node: Node) -> bool:
    """Whether it may match without reading anything, in the middle of an answer."""
    match node:
        case Row(items):
            return all(map(can_be_empty, items))
        case Either(options):
            return any(map(can_be_empty, options))
        case Repeat(item, least):
            return least == 0 or can_be_empty(item)
        case Group(_, item):
            return can_be_empty(item)
        case _:
            return False


def uses_begin(node: Node) -> bool:
    match node:
        case Row(items) | Either(items):
            return any(map(uses_begin, items))
        case Repeat(item) | Group(_, item):
            return uses_begin(item)
        case _:
            return isinstance(node, Begin)


def spell(node: Node, captures: Mapping[str, str]) -> str | None:
    """The shortest text that it stands for, with the named groups filled in; None if it takes a free choice."""
    match node:
        case Chars(_, text):
            return text
        case Row(items):
            return _join(spell(item, captures) for item in items)
        case Either(options):
            return next((text for option in options if (text := spell(option, captures))), None)
        case Repeat(item, least):
            return _join(spell(item, captures) for _ in range(least))
        case Group(name, item):
            return captures[name] if name is not None and name in captures else spell(item, captures)
        case _:
            return ""


def _join(texts: Iterable[str | None]) -> str | None:
    parts = list(texts)
    whole = [part for part in parts if part is not None]
    return "".join(whole) if len(whole) == len(parts) else None


def literals(node: Node) -> list[str]:
    """The runs of fixed characters in it."""
    match node:
        case Chars(_, text):
            return [] if text is None else [text]
        case Row(items):
            return _runs(items)
        case Either(options):
            return [run for option in options for run in literals(option)]
        case Repeat(item) | Group(_, item):
            return literals(item)
        case _:
            return []


def _runs(items: Sequence[Node]) -> list[str]:
    runs, run = list[str](), ""
    for item in items:
        if isinstance(item, Chars) and item.text is not None:
            run += item.text
            continue
        runs += [run, *literals(item)]
        run = ""
    return [text for text in [*runs, run] if text]
